// Root mean square layer normalisation (Zhang and Sennrich, 2019).
#pragma once

#include "kernels/weight.h"

namespace mythos {

inline constexpr double rms_norm_eps = 1e-6;

/// y = x / sqrt(mean(x^2, -1) + eps) * weight, computed in fp32 at least, returned in x's dtype. x: [..., D], weight:
/// [D].
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight);

/// The same from composite ATen operations: the oracle, and the path of devices without a kernel.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight);

struct ResidualNorm {
  at::Tensor sum;  ///< x + added, in x's dtype
  at::Tensor y;    ///< rms_norm(sum, weight)
};
/// A residual connection and the norm behind it, in one pass where the device has a kernel. x, added: [..., D].
ResidualNorm residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight);
/// The same from composite ATen operations.
ResidualNorm residual_norm_reference(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight);

}  // namespace mythos
