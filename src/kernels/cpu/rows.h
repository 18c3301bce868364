// Row kernels for the CPU: plain loops over pointers, compiled for several instruction sets and chosen at load time.
// The tensor side (shapes, threads, autograd) is in the .cpp of each op one folder up. T is float or double.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps); returns rstd.
template <class T>
T rms_norm_row(const T* x, const T* w, int64_t n, T eps, T* y);
/// Gradients of one row: writes dx, adds to dw.
template <class T>
void rms_norm_backward_row(const T* x, const T* w, const T* dy, T rstd, int64_t n, T* dx, T* dw);

/// y = silu(gate) * up, n wide.
template <class T>
void swiglu_row(const T* gate, const T* up, int64_t n, T* y);
template <class T>
void swiglu_backward_row(const T* gate, const T* up, const T* dy, int64_t n, T* dgate, T* dup);

/// out[2i], out[2i+1] = (x[2i] + i x[2i+1]) * (c[i] + i s[i]); sign -1 rotates back. n = number of pairs.
template <class T>
void rotate_row(const T* x, const float* c, const float* s, T sign, int64_t n, T* out);

/// a . b, summed in a fixed order.
template <class T>
T dot_row(const T* a, const T* b, int64_t n);
/// y += a * x
template <class T>
void axpy_row(T a, const T* x, int64_t n, T* y);

}  // namespace mythos::cpu
