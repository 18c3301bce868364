// What every op with weights shares: a weight with its gradient buffer, and splitting rows over threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>

namespace mythos {

/// A parameter and, in training, the buffer its gradient is added to. Where `grad` is defined, ops add to it in their
/// backward pass (a GEMM with beta 1) and hand nothing to autograd; where it is not, autograd gets the gradient as
/// usual. `grad` may be of a wider type than `value`.
struct Weight {
  at::Tensor value;
  at::Tensor grad;
};

/// A gradient buffer on its way into a custom autograd function, which takes tensor arguments for inputs and refuses
/// undefined ones.
struct GradientBuffer {
  at::Tensor tensor;
};

/// A weight in the type that an op computes in. Weights may be stored narrower (bfloat16 for decoding) than what they
/// are multiplied with.
inline at::Tensor of_type(const at::Tensor& t, at::ScalarType type) { return t.scalar_type() == type ? t : t.to(type); }

/// The same without gradients, as the fused ops take it: they want one type for everything. With gradients on it stays
/// as it is, for the gradient must reach the stored weight.
inline Weight in_type(const Weight& w, at::ScalarType type) {
  return at::GradMode::is_enabled() || w.value.scalar_type() == type ? w : Weight{w.value.to(type), {}};
}

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
/// Calls body(begin, end) for pieces that make up [0, rows), each thread taking the next one when it is done with one:
/// for work that waits for memory, where one thread may be slower. Nothing may depend on the pieces. `width`: of a row.
template <class Body>
void for_row_chunks(int64_t rows, int64_t width, const Body& body) {
  const int64_t workers =
      rows * width < 16384 ? 1 : std::max<int64_t>(1, std::min<int64_t>(rows, at::get_num_threads()));
  constexpr int64_t worth_taking = 64 << 10;  // elements: to begin somewhere else costs a few microseconds
  const int64_t chunks =
      workers == 1 ? 1 : std::min(rows, std::clamp(rows * width / worth_taking, workers, 8 * workers));
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t c = next++; c < chunks; c = next++) body(rows * c / chunks, rows * (c + 1) / chunks);
  });
}
/// Number of parts for rows of this width: one where threads would cost more than they bring.
inline int64_t row_parts(int64_t rows, int64_t width) {
  return rows * width < 16384 ? 1 : std::max<int64_t>(1, std::min<int64_t>(rows, at::get_num_threads()));
}

}  // namespace mythos
