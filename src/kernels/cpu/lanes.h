// Sums and maxima of rows in 16 lanes of fixed order, which the compiler vectorises without reordering anything.
#pragma once

#include "kernels/cpu/exp.h"

#include <cstdint>

namespace mythos::cpu {

constexpr int64_t lanes = 16;

template <class T>
MYTHOS_INLINE T sum_lanes(const T* acc) {
  T t[lanes / 2];
  for (int64_t j = 0; j < lanes / 2; ++j) t[j] = acc[j] + acc[j + lanes / 2];
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/// Largest of n > 0 values; NaN only where the first is.
template <class T>
MYTHOS_INLINE T max_of(const T* x, int64_t n) {
  T top[lanes];
  for (int64_t j = 0; j < lanes; ++j) top[j] = x[0];
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
  }
  for (; i < n; ++i) top[0] = x[i] > top[0] ? x[i] : top[0];
  T max = top[0];
  for (int64_t j = 1; j < lanes; ++j) max = top[j] > max ? top[j] : max;
  return max;
}

}  // namespace mythos::cpu
