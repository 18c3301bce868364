#include "step/device_input.h"

#include "kernels/device.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace mythos {

DeviceInput::Batch DeviceInput::send(const at::Tensor& ids, const at::Tensor& targets) {
  if (ids.device().type() == device_.type() && targets.device().type() == device_.type()) return {ids, targets};
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Device device(device_.type(), device_.has_index() ? device_.index() : guard.getDevice().index());
  if (!stream_) stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  const c10::Stream computing = guard.getStream(device);

  // What computes with the last batch has been given to the device by now.
  if (Slot& last = slots_[1 - next_]; last.device.defined()) {
    if (!last.used) last.used.emplace(device_.type());
    last.used->record(computing);
  }
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  const std::vector<int64_t> shape{2, ids.size(0), ids.size(1)};
  if (!slot.host.defined() || slot.host.sizes() != at::IntArrayRef(shape)) {
    if (slot.copied) slot.copied->synchronize();
    slot.host = pinned_for(device, shape, at::kLong);
    slot.device = at::empty(shape, at::TensorOptions(device).dtype(at::kLong));
    slot.used.reset();
    // Its memory may have been another tensor's on the computing stream.
    c10::Event fresh(device_.type());
    fresh.record(computing);
    fresh.block(*stream_);
  } else if (slot.copied) {
    slot.copied->synchronize();  // long done: it was two batches ago
  }
  slot.host.select(0, 0).copy_(ids);
  slot.host.select(0, 1).copy_(targets);
  {
    const c10::StreamGuard on(*stream_);
    if (slot.used) slot.used->block(*stream_);
    slot.device.copy_(slot.host, /*non_blocking=*/true);
    if (!slot.copied) slot.copied.emplace(device_.type());
    slot.copied->record(*stream_);
  }
  slot.copied->block(computing);
  return {slot.device.select(0, 0), slot.device.select(0, 1)};
}

}  // namespace mythos
