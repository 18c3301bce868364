// Sums of long rows of numbers in a fixed order, for the device. Raw memory here, tensors in sum.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// squares[t] += the sum of team t's numbers squared, t below square_parts. The team of a number follows from its place
/// alone, so that results are the same for every GPU.
struct SquaresArgs {
  Type type = Type::f32;  ///< f32 or f64
  int64_t count = 0;
  const void* numbers = nullptr;
  double* squares = nullptr;
};
inline constexpr int64_t square_parts = 512;

/// out[0] = the sum of the numbers.
struct SumArgs {
  int64_t count = 0;
  const double* numbers = nullptr;
  double* out = nullptr;
};

MYTHOS_ENTRY(add_squares, SquaresArgs)
MYTHOS_ENTRY(sum_numbers, SumArgs)

}  // namespace mythos::cuda
