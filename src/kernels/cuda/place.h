// Tensors and the CUDA kernels: which tensors they take, and in which form.
#pragma once

#include "kernels/cuda/entry.h"
#include "kernels/weight.h"

namespace mythos::cuda {

/// Whether the fused ops of this folder take a tensor: fp32, fp64 or bfloat16 on a CUDA device, where the program is
/// built for it; and on the CPU while an OnHost lives.
bool applies(const at::Tensor& t);
/// And its weight, which must be of the same type.
inline bool applies(const at::Tensor& t, const Weight& weight) {
  return applies(t) && weight.value.scalar_type() == t.scalar_type();
}

/// While one lives, ops on CPU tensors run the source of the CUDA kernels, slowly, instead of the CPU's own form: their
/// tests, and `scripts/gpu_check` where there is no GPU. Of the whole process, as backward passes have threads of their
/// own.
class OnHost {
 public:
  OnHost();
  ~OnHost();
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
};

/// The form for a tensor that applies(), on the device's current stream.
Where place_of(const at::Tensor& like);
/// 89 for compute capability 8.9; 0 for the host.
int compute_capability(at::Device device);
Type type_of(at::ScalarType type);
inline Type type_of(const at::Tensor& t) { return type_of(t.scalar_type()); }

/// Teams that share out rows where each sums a gradient of its own: the same for every GPU, so that results are too.
inline int64_t gradient_parts(int64_t rows) { return std::clamp<int64_t>(rows, 1, 256); }

/// The sum of [parts, ...] over the parts, in order: added to `sink`, and nothing is returned; or, where there is none,
/// in new memory of `type`.
at::Tensor deliver_parts(const at::Tensor& parts, const at::Tensor& sink, at::ScalarType type);

}  // namespace mythos::cuda
