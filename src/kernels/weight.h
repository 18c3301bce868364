// What every op with weights shares: a weight with its gradient buffer, and splitting rows over threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace mythos {

/// A parameter and, in training, the buffer its gradient is added to. Where `grad` is defined, ops add to it in their
/// backward pass (a GEMM with beta 1) and hand nothing to autograd; where it is not, autograd gets the gradient as
/// usual.
struct Weight {
  at::Tensor value;
  at::Tensor grad;
};

/// A gradient buffer on its way into a custom autograd function, which takes tensor arguments for inputs and refuses
/// undefined ones.
struct GradientBuffer {
  at::Tensor tensor;
};

/// Whether the row kernels of kernels/cpu can take this tensor: on the CPU, float or double.
inline bool rows_apply(const at::Tensor& t) {
  return t.device().is_cpu() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble);
}

/// The type sums and norms are computed in: fp32 at least.
inline at::ScalarType accumulate_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

/// Calls body(part, begin, end) once for each of at most get_num_threads() equal parts of [0, rows). The parts depend
/// only on the thread count, so that sums per part, added in order, are reproducible.
template <class Body>
void for_row_parts(int64_t rows, int64_t parts, const Body& body) {
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) body(p, rows * p / parts, rows * (p + 1) / parts);
  });
}
/// Number of parts for rows of this width: one where threads would cost more than they bring.
inline int64_t row_parts(int64_t rows, int64_t width) {
  return rows * width < 16384 ? 1 : std::max<int64_t>(1, std::min<int64_t>(rows, at::get_num_threads()));
}

}  // namespace mythos
