#include "kernels/cpu/rows.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"

// Sums are kept in 16 lanes of fixed order, which the compiler vectorises without reordering anything.

namespace mythos::cpu {
namespace {

constexpr int64_t lanes = 16;

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

template <class T>
MYTHOS_INLINE T rms_norm_body(const T* x, const T* w, int64_t n, T eps, T* y) {
  const T rstd = T(1) / std::sqrt(dot_body(x, x, n) / static_cast<T>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * w[i];
  return rstd;
}

template <class T>
MYTHOS_INLINE void rms_norm_backward_body(const T* x, const T* w, const T* dy, T rstd, int64_t n, T* dx, T* dw) {
  T acc[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) acc[j] += dy[i + j] * w[i + j] * x[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) acc[j] += dy[i + j] * w[i + j] * x[i + j];
  const T k = sum_lanes(acc) * rstd * rstd / static_cast<T>(n);
  for (i = 0; i < n; ++i) {
    dw[i] += dy[i] * x[i] * rstd;
    dx[i] = (dy[i] * w[i] - x[i] * k) * rstd;
  }
}

template <class T>
MYTHOS_INLINE void swiglu_body(const T* gate, const T* up, int64_t n, T* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (T(1) + exp_of(-gate[i])) * up[i];
}

template <class T>
MYTHOS_INLINE void swiglu_backward_body(const T* gate, const T* up, const T* dy, int64_t n, T* dgate, T* dup) {
  for (int64_t i = 0; i < n; ++i) {
    const T sigmoid = T(1) / (T(1) + exp_of(-gate[i]));
    const T d = dy[i];
    dup[i] = d * gate[i] * sigmoid;
    dgate[i] = d * up[i] * sigmoid * (T(1) + gate[i] * (T(1) - sigmoid));
  }
}

template <class T>
MYTHOS_INLINE void rotate_body(const T* x, const float* c, const float* s, T sign, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    const T a = x[2 * i];
    const T b = x[2 * i + 1];
    const T cosine = static_cast<T>(c[i]);
    const T sine = sign * static_cast<T>(s[i]);
    out[2 * i] = a * cosine - b * sine;
    out[2 * i + 1] = a * sine + b * cosine;
  }
}

}  // namespace

// clang-format off
#define MYTHOS_ROW_KERNELS(T)                                                                                        \
  template <> MYTHOS_CLONES T rms_norm_row(const T* x, const T* w, int64_t n, T eps, T* y) {                         \
    return rms_norm_body(x, w, n, eps, y);                                                                           \
  }                                                                                                                  \
  template <> MYTHOS_CLONES void rms_norm_backward_row(const T* x, const T* w, const T* dy, T rstd, int64_t n,       \
                                                       T* dx, T* dw) {                                               \
    rms_norm_backward_body(x, w, dy, rstd, n, dx, dw);                                                               \
  }                                                                                                                  \
  template <> MYTHOS_CLONES void swiglu_row(const T* gate, const T* up, int64_t n, T* y) {                           \
    swiglu_body(gate, up, n, y);                                                                                     \
  }                                                                                                                  \
  template <> MYTHOS_CLONES void swiglu_backward_row(const T* gate, const T* up, const T* dy, int64_t n, T* dgate,   \
                                                     T* dup) {                                                       \
    swiglu_backward_body(gate, up, dy, n, dgate, dup);                                                               \
  }                                                                                                                  \
  template <> MYTHOS_CLONES void rotate_row(const T* x, const float* c, const float* s, T sign, int64_t n, T* out) { \
    rotate_body(x, c, s, sign, n, out);                                                                              \
  }                                                                                                                  \
  template <> MYTHOS_CLONES T dot_row(const T* a, const T* b, int64_t n) { return dot_body(a, b, n); }               \
  template <> MYTHOS_CLONES void axpy_row(T a, const T* x, int64_t n, T* y) {                                        \
    for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];                                                                \
  }
MYTHOS_ROW_KERNELS(float)
MYTHOS_ROW_KERNELS(double)
// clang-format on

}  // namespace mythos::cpu
