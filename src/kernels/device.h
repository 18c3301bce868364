// A device beside the host: waiting for it, its memory, and copies from and to it. Works without one too.
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

/// Bytes of the device that are free, its allocator's cache not among them; of the CPU what is available.
int64_t free_memory(at::Device device);
/// The most bytes that tensors took at a time since reset_peak_memory(), as the allocator counts them.
int64_t peak_memory(at::Device device);
void reset_peak_memory(at::Device device);
/// Gives a device what its allocator keeps for later.
void release_cached_memory(at::Device device);

}  // namespace mythos
