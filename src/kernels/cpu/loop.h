// Row kernels of the looped block's elementwise work (kernels/loop.h). T is float or double; no two rows overlap unless
// both are only read.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// y = s * rstd * w with s = h + signal + e and rstd = 1 / sqrt(mean(s^2) + eps); returns rstd.
template <class T>
T loop_norm_row(const T* h, const T* signal, const T* e, const T* w, int64_t n, T eps, T* y);
/// Gradients of one row: writes ds, adds to dw.
template <class T>
void loop_norm_backward_row(const T* h, const T* signal, const T* e, const T* w, const T* dy, T rstd, int64_t n, T* ds,
                            T* dw);

/// y = a * h + b * e + u + lora
template <class T>
void injection_row(const T* a, const T* h, const T* b, const T* e, const T* u, const T* lora, int64_t n, T* y);
/// dh = a * dy, de = b * dy; adds dy * h to da and dy * e to db.
template <class T>
void injection_backward_row(const T* a, const T* h, const T* b, const T* e, const T* dy, int64_t n, T* dh, T* de, T* da,
                            T* db);

/// y = out + weight * h
template <class T>
void act_row(const T* out, T weight, const T* h, int64_t n, T* y);
/// dh = weight * dy + dlogit * halt; adds dlogit * h to dhalt.
template <class T>
void act_backward_row(T weight, const T* dy, T dlogit, const T* halt, const T* h, int64_t n, T* dh, T* dhalt);

}  // namespace mythos::cpu
