#include "kernels/cpu/softmax.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"

namespace mythos::cpu {
namespace {

// W columns side by side: their maxima and sums stay in registers.
template <int W, class T>
MYTHOS_INLINE void exp_group(T* tile, int64_t rows, int64_t stride, T* top, T* sum) {
  T max[W];
  for (int j = 0; j < W; ++j) max[j] = tile[j];
  for (int64_t r = 1; r < rows; ++r) {
    const T* row = tile + r * stride;
    for (int j = 0; j < W; ++j) max[j] = row[j] > max[j] ? row[j] : max[j];
  }
  T total[W] = {};
  for (int64_t r = 0; r < rows; ++r) {
    T* row = tile + r * stride;
    for (int j = 0; j < W; ++j) {
      const T e = exp_of(row[j] - max[j]);
      row[j] = e;
      total[j] += e;
    }
  }
  for (int j = 0; j < W; ++j) {
    top[j] = max[j];
    sum[j] = total[j];
  }
}

template <class T>
MYTHOS_INLINE void exp_columns_body(T* tile, int64_t rows, int64_t stride, int64_t columns, T* top, T* sum) {
  constexpr int wide = 32;
  constexpr int narrow = 8;
  int64_t j = 0;
  for (; j + wide <= columns; j += wide) exp_group<wide>(tile + j, rows, stride, top + j, sum + j);
  for (; j + narrow <= columns; j += narrow) exp_group<narrow>(tile + j, rows, stride, top + j, sum + j);
  for (; j < columns; ++j) exp_group<1>(tile + j, rows, stride, top + j, sum + j);
}

}  // namespace

// clang-format off
#define MYTHOS_SOFTMAX_KERNELS(T)                                                                                     \
  template <> MYTHOS_CLONES void exp_columns(T* tile, int64_t rows, int64_t stride, int64_t columns, T* top, T* sum) { \
    exp_columns_body(tile, rows, stride, columns, top, sum);                                                          \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void multiply_row(const T* factor, int64_t n, T* row) {                                   \
    for (int64_t i = 0; i < n; ++i) row[i] *= factor[i];                                                              \
  }
MYTHOS_SOFTMAX_KERNELS(float)
MYTHOS_SOFTMAX_KERNELS(double)
// clang-format on

}  // namespace mythos::cpu
