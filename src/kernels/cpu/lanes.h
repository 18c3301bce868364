// Sums for the row kernels: kept in 16 lanes of fixed order, which the compiler vectorises without reordering anything.
#pragma once

#include "kernels/cpu/exp.h"

namespace mythos::cpu {

inline constexpr int64_t lanes = 16;

template <class T>
MYTHOS_INLINE T sum_lanes(const T* acc) {
  T t[lanes / 2];
  for (int64_t j = 0; j < lanes / 2; ++j) t[j] = acc[j] + acc[j + lanes / 2];
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

template <class T>
MYTHOS_INLINE T dot_body(const T* a, const T* b, int64_t n) {
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) acc[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) acc[j] += a[i + j] * b[i + j];
  return sum_lanes(acc);
}

}  // namespace mythos::cpu
