#include "kernels/host_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace mythos {

at::Tensor pinned_for(at::Device device, at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions(at::kCPU).dtype(type).pinned_memory(!device.is_cpu()));
}

void wait_for_device(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
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

}  // namespace mythos
