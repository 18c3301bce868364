// Products of a few rows with a large matrix, as decoding makes them: the matrix is read once, at the speed of memory.
// Plain pointers, one thread; who calls shares out the matrix's rows.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// A bfloat16 as it is stored: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};

/// More rows than these at once are a job for a matrix multiply: it computes more for each byte it reads.
constexpr int64_t few_rows_most = 16;

/// out[r][j] = x[r] . w[j] for r < rows and j < n, each sum k long and in an order that depends on k alone: a row's
/// results do not depend on which others come with it. Rows of x, w and out are ldx, ldw and ldo elements apart. T is
/// float or double; W is T, or Bf16 with float.
template <class T, class W>
void few_rows(int64_t rows, int64_t k, const T* x, int64_t ldx, int64_t n, const W* w, int64_t ldw, T* out,
              int64_t ldo);

/// y[i] = sum_j a[j] * w[j][i], j < n, i < k: the product with the transposed matrix, in the order of j.
template <class T, class W>
void weighted_rows(int64_t n, int64_t k, const T* a, const W* w, int64_t ldw, T* y);

}  // namespace mythos::cpu
