// SwiGLU (Shazeer, 2020) on a joined gate | up projection, and the feed-forward network made of it.
#pragma once

#include "kernels/part.h"
#include "kernels/weight.h"

namespace mythos {

/// down(silu(gate(x)) * up(x)). x: [..., D]; gate_up: [2F, D], gate before up; down: [D, F]. Keeps x and the joined
/// projections [..., 2F] for the backward pass, not what is between. Its time counts for `part`.
at::Tensor feed_forward(const at::Tensor& x, const Weight& gate_up, const Weight& down, Part part);
/// The same from composite ATen operations.
at::Tensor feed_forward_reference(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down);

// Outside autograd, for ops that have SwiGLU inside. `joined` is contiguous, [N, 2F].

/// silu(gate) * up, [N, F].
at::Tensor swiglu_forward(const at::Tensor& joined);
/// The same from composite ATen operations.
at::Tensor swiglu_reference(const at::Tensor& joined);

struct SwigluBackward {
  at::Tensor act;      ///< y * scale, [N, F]
  at::Tensor djoined;  ///< gradient of joined, [N, 2F]
  at::Tensor dscale;   ///< gradient of scale, [N]; undefined where there is no scale
};
/// For y = swiglu(joined) and the gradient dy [N, F] of scale * y; `scale` [N] may be undefined: all ones.
SwigluBackward swiglu_backward(const at::Tensor& joined, const at::Tensor& dy, const at::Tensor& scale);

}  // namespace mythos
