// SwiGLU (Shazeer, 2020) on a joined gate | up projection.
#pragma once

#include "kernels/weight.h"

namespace mythos {

/// y = silu(gate) * up, where joined = [..., gate | up] is 2F wide and y is F wide.
at::Tensor swiglu(const at::Tensor& joined);
/// The same from composite ATen operations.
at::Tensor swiglu_reference(const at::Tensor& joined);

/// The two halves outside autograd, for ops that have SwiGLU inside. `joined` is contiguous, [N, 2F].
at::Tensor swiglu_forward(const at::Tensor& joined);
/// Gradient of `joined` from that of y, [N, 2F].
at::Tensor swiglu_backward(const at::Tensor& joined, const at::Tensor& dy);

}  // namespace mythos
