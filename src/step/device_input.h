// Batches on their way to the device: copied from pinned memory on a stream of their own, while the step before
// computes.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <optional>

namespace mythos {

class DeviceInput {
 public:
  explicit DeviceInput(at::Device device) : device_(device) {}

  struct Batch {
    at::Tensor ids, targets;  ///< int64 [B, T] on the device
  };
  /// Starts the copies; the device's current stream waits for them, the host does not. What this returned the call
  /// before the last one is overwritten, once the current stream has done all it was given until then. Tensors that are
  /// on the device already come back as they are.
  Batch send(const at::Tensor& ids, const at::Tensor& targets);

 private:
  struct Slot {
    at::Tensor host, device;  // int64 [2, B, T]
    std::optional<c10::Event> copied, used;
  };
  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::array<Slot, 2> slots_;
  size_t next_ = 0;
};

}  // namespace mythos
