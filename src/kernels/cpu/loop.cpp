#include "kernels/cpu/loop.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/lanes.h"

namespace mythos::cpu {
namespace {

template <class T>
MYTHOS_INLINE T loop_norm_body(const T* __restrict h, const T* __restrict signal, const T* __restrict e,
                               const T* __restrict w, int64_t n, T eps, T* __restrict y) {
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      const T s = h[i + j] + signal[i + j] + e[i + j];
      y[i + j] = s;
      acc[j] += s * s;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const T s = h[i + j] + signal[i + j] + e[i + j];
    y[i + j] = s;
    acc[j] += s * s;
  }
  const T rstd = T(1) / std::sqrt(sum_lanes(acc) / static_cast<T>(n) + eps);
  for (i = 0; i < n; ++i) y[i] = y[i] * rstd * w[i];
  return rstd;
}

template <class T>
MYTHOS_INLINE void loop_norm_backward_body(const T* __restrict h, const T* __restrict signal, const T* __restrict e,
                                           const T* __restrict w, const T* __restrict dy, T rstd, int64_t n,
                                           T* __restrict ds, T* __restrict dw) {
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) {
      const T s = h[i + j] + signal[i + j] + e[i + j];
      ds[i + j] = s;
      acc[j] += dy[i + j] * w[i + j] * s;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const T s = h[i + j] + signal[i + j] + e[i + j];
    ds[i + j] = s;
    acc[j] += dy[i + j] * w[i + j] * s;
  }
  const T k = sum_lanes(acc) * rstd * rstd / static_cast<T>(n);
  for (i = 0; i < n; ++i) {
    const T s = ds[i];
    dw[i] += dy[i] * s * rstd;
    ds[i] = (dy[i] * w[i] - s * k) * rstd;
  }
}

template <class T>
MYTHOS_INLINE void injection_body(const T* __restrict a, const T* __restrict h, const T* __restrict b,
                                  const T* __restrict e, const T* __restrict u, const T* __restrict lora, int64_t n,
                                  T* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * h[i] + b[i] * e[i] + u[i] + lora[i];
}

template <class T>
MYTHOS_INLINE void injection_backward_body(const T* __restrict a, const T* __restrict h, const T* __restrict b,
                                           const T* __restrict e, const T* __restrict dy, int64_t n, T* __restrict dh,
                                           T* __restrict de, T* __restrict da, T* __restrict db) {
  for (int64_t i = 0; i < n; ++i) {
    dh[i] = a[i] * dy[i];
    de[i] = b[i] * dy[i];
    da[i] += dy[i] * h[i];
    db[i] += dy[i] * e[i];
  }
}

template <class T>
MYTHOS_INLINE void act_body(const T* __restrict out, T weight, const T* __restrict h, int64_t n, T* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = out[i] + weight * h[i];
}

template <class T>
MYTHOS_INLINE void act_backward_body(T weight, const T* __restrict dy, T dlogit, const T* __restrict halt,
                                     const T* __restrict h, int64_t n, T* __restrict dh, T* __restrict dhalt) {
  for (int64_t i = 0; i < n; ++i) {
    dh[i] = weight * dy[i] + dlogit * halt[i];
    dhalt[i] += dlogit * h[i];
  }
}

}  // namespace

// clang-format off
#define MYTHOS_LOOP_KERNELS(T)                                                                                        \
  template <> MYTHOS_CLONES T loop_norm_row(const T* h, const T* signal, const T* e, const T* w, int64_t n, T eps,    \
                                            T* y) {                                                                   \
    return loop_norm_body(h, signal, e, w, n, eps, y);                                                                \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void loop_norm_backward_row(const T* h, const T* signal, const T* e, const T* w,          \
                                                        const T* dy, T rstd, int64_t n, T* ds, T* dw) {               \
    loop_norm_backward_body(h, signal, e, w, dy, rstd, n, ds, dw);                                                    \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void injection_row(const T* a, const T* h, const T* b, const T* e, const T* u,            \
                                               const T* lora, int64_t n, T* y) {                                      \
    injection_body(a, h, b, e, u, lora, n, y);                                                                        \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void injection_backward_row(const T* a, const T* h, const T* b, const T* e, const T* dy,  \
                                                        int64_t n, T* dh, T* de, T* da, T* db) {                      \
    injection_backward_body(a, h, b, e, dy, n, dh, de, da, db);                                                       \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void act_row(const T* out, T weight, const T* h, int64_t n, T* y) {                       \
    act_body(out, weight, h, n, y);                                                                                   \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void act_backward_row(T weight, const T* dy, T dlogit, const T* halt, const T* h,         \
                                                  int64_t n, T* dh, T* dhalt) {                                       \
    act_backward_body(weight, dy, dlogit, halt, h, n, dh, dhalt);                                                     \
  }
MYTHOS_LOOP_KERNELS(float)
MYTHOS_LOOP_KERNELS(double)
// clang-format on

}  // namespace mythos::cpu
