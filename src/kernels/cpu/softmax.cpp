#include "kernels/cpu/softmax.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/lanes.h"

namespace mythos::cpu {
namespace {

// Columns are the inner loops, which vectorise; their maxima and sums stay in the nearest cache.
template <class T>
MYTHOS_INLINE void exp_columns_body(T* __restrict tile, int64_t rows, int64_t stride, int64_t columns,
                                    T* __restrict top, T* __restrict sum) {
  for (int64_t j = 0; j < columns; ++j) {
    top[j] = tile[j];
    sum[j] = 0;
  }
  for (int64_t r = 1; r < rows; ++r) {
    const T* __restrict row = tile + r * stride;
    for (int64_t j = 0; j < columns; ++j) top[j] = row[j] > top[j] ? row[j] : top[j];
  }
  for (int64_t r = 0; r < rows; ++r) {
    T* __restrict row = tile + r * stride;
    for (int64_t j = 0; j < columns; ++j) {
      const T e = exp_of(row[j] - top[j]);
      row[j] = e;
      sum[j] += e;
    }
  }
}

template <class T>
MYTHOS_INLINE void softmax_row_body(T* row, int64_t n) {
  const T top = max_of(row, n);
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      row[i + j] = exp_of(row[i + j] - top);
      acc[j] += row[i + j];
    }
  }
  for (; i < n; ++i) {
    row[i] = exp_of(row[i] - top);
    acc[0] += row[i];
  }
  const T scale = T(1) / sum_lanes(acc);
  for (i = 0; i < n; ++i) row[i] *= scale;
}

}  // namespace

// clang-format off
#define MYTHOS_SOFTMAX_KERNELS(T)                                                                                     \
  template <> MYTHOS_CLONES void exp_columns(T* tile, int64_t rows, int64_t stride, int64_t columns, T* top, T* sum) { \
    exp_columns_body(tile, rows, stride, columns, top, sum);                                                          \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void softmax_row(T* row, int64_t n) { softmax_row_body(row, n); }                         \
  template <> MYTHOS_CLONES void multiply_row(const T* factor, int64_t n, T* row) {                                   \
    for (int64_t i = 0; i < n; ++i) row[i] *= factor[i];                                                              \
  }
MYTHOS_SOFTMAX_KERNELS(float)
MYTHOS_SOFTMAX_KERNELS(double)
// clang-format on

}  // namespace mythos::cpu
