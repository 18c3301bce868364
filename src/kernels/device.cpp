#include "kernels/device.h"

#include "base/machine.h"
#include "kernels/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace mythos {

namespace {

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

}  // namespace

at::Tensor pinned_for(at::Device device, at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions(at::kCPU).dtype(type).pinned_memory(!device.is_cpu()));
}

void wait_for_device(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(index_of(device));
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  at::Device device = at::kCPU;
  for (const at::Tensor& t : tensors) {
    if (t.device().is_cpu()) {
      copies.push_back(t);
      continue;
    }
    device = t.device();
    copies.push_back(pinned_for(device, t.sizes(), t.scalar_type()));
    copies.back().copy_(t, /*non_blocking=*/true);
  }
  wait_for_device(device);
  return copies;
}

int64_t free_memory(at::Device device) {
  if (device.is_cpu()) return std::min(usable_memory(), available_memory());
  return static_cast<int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(index_of(device)).first);
}

int64_t peak_memory(at::Device device) {
  if (device.is_cpu()) return memory_use().peak;
  return at::getDeviceAllocator(device.type())->getDeviceStats(index_of(device)).allocated_bytes[0].peak;
}

void reset_peak_memory(at::Device device) {
  if (device.is_cpu()) return reset_memory_peak();
  at::getDeviceAllocator(device.type())->resetPeakStats(index_of(device));
}

void release_cached_memory(at::Device device) {
  if (!device.is_cpu()) at::getDeviceAllocator(device.type())->emptyCache();
}

}  // namespace mythos
