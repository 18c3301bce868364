#include "kernels/cpu/attention_rows.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/lanes.h"

namespace mythos::cpu {
namespace {

// exp(x) for x <= 0, and 0 where it would vanish beside 1: exp_of would leave values whose products are denormal, which
// processors multiply slowly.
MYTHOS_INLINE float share_of(float x) {
  const float p = exp_of(x);
  return x < -80.0F ? 0.0F : p;
}
MYTHOS_INLINE double share_of(double x) {
  const double p = exp_of(x);
  return x < -700.0 ? 0.0 : p;
}

MYTHOS_INLINE int64_t seen_by(int64_t row, int64_t n, int64_t visible) { return visible + row < n ? visible + row : n; }

template <class T>
MYTHOS_INLINE T exponentials(T* x, int64_t n, T max) {
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      const T p = share_of(x[i + j] - max);
      x[i + j] = p;
      acc[j] += p;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const T p = share_of(x[i + j] - max);
    x[i + j] = p;
    acc[j] += p;
  }
  return sum_lanes(acc);
}

template <class T>
MYTHOS_INLINE void softmax_body(T* scores, int64_t rows, int64_t n, int64_t stride, int64_t visible, bool first, T* top,
                                T* sum, T* acc, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    T* row = scores + r * stride;
    const int64_t seen = seen_by(r, n, visible);
    T max = max_of(row, seen);
    if (first) {
      sum[r] = exponentials(row, seen, max);
      top[r] = max;
    } else if (top[r] >= max) {
      sum[r] += exponentials(row, seen, top[r]);
    } else {
      const T keep = share_of(top[r] - max);
      for (int64_t i = 0; i < width; ++i) acc[r * width + i] *= keep;
      sum[r] = sum[r] * keep + exponentials(row, seen, max);
      top[r] = max;
    }
    for (int64_t i = seen; i < n; ++i) row[i] = T(0);
  }
}

template <class T>
MYTHOS_INLINE void softmax_backward_body(T* scores, T* grads, int64_t rows, int64_t n, int64_t stride, int64_t visible,
                                         const T* lse, const T* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    T* __restrict s = scores + r * stride;
    T* __restrict g = grads + r * stride;
    const int64_t seen = seen_by(r, n, visible);
    const T l = lse[r];
    const T d = delta[r];
    for (int64_t i = 0; i < seen; ++i) {
      const T p = share_of(s[i] - l);
      s[i] = p;
      g[i] = p * (g[i] - d);
    }
    for (int64_t i = seen; i < n; ++i) {
      s[i] = T(0);
      g[i] = T(0);
    }
  }
}

}  // namespace

// clang-format off
#define MYTHOS_ATTENTION_ROW_KERNELS(T)                                                                                      \
  template <> MYTHOS_CLONES void softmax_tile(T* scores, int64_t rows, int64_t n, int64_t stride, int64_t visible,     \
                                              bool first, T* top, T* sum, T* acc, int64_t width) {                     \
    softmax_body(scores, rows, n, stride, visible, first, top, sum, acc, width);                                       \
  }                                                                                                                    \
  template <> MYTHOS_CLONES void softmax_backward_tile(T* scores, T* grads, int64_t rows, int64_t n, int64_t stride,   \
                                                       int64_t visible, const T* lse, const T* delta) {                \
    softmax_backward_body(scores, grads, rows, n, stride, visible, lse, delta);                                        \
  }                                                                                                                    \
  template <> MYTHOS_CLONES void scale_row(T a, const T* x, int64_t n, T* y) {                                         \
    for (int64_t i = 0; i < n; ++i) y[i] = a * x[i];                                                                   \
  }
MYTHOS_ATTENTION_ROW_KERNELS(float)
MYTHOS_ATTENTION_ROW_KERNELS(double)
// clang-format on

}  // namespace mythos::cpu
