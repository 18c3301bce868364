// Between a device and the host: pinned memory, and copies that nobody waits for one by one.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace mythos {

/// Uninitialised memory of the host that `device` copies to and from by itself, while the host does something else;
/// ordinary memory for the CPU.
at::Tensor pinned_for(at::Device device, at::IntArrayRef shape, at::ScalarType type);

/// Waits until everything that was begun on the device is done; nothing for the CPU.
void wait_for_device(at::Device device);

/// Tensors of one device on the host: copied through pinned memory, all under way at once, waited for once. Those of
/// the CPU as they are.
std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors);

}  // namespace mythos
