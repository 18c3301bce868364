// Softmax over tiles of attention scores. T is float or double; all tiles are row-major, `stride` from row to row.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// One step of the online softmax (Milakov and Gimelshein, 2018). Row r of the tile holds n scores, of which the first
/// min(n, visible + r) count (all of them, if the tile is not on the diagonal). Writes their exponentials relative to
/// the row's largest score so far, 0 for the others. top[r]: that largest score; sum[r]: the sum of exponentials;
/// acc: rows x width, what was summed up with the exponentials so far: all three are rescaled where a score exceeds
/// top[r], and neither read nor needed where `first`.
template <class T>
void softmax_tile(T* scores, int64_t rows, int64_t n, int64_t stride, int64_t visible, bool first, T* top, T* sum,
                  T* acc, int64_t width);

/// Turns a tile of scores into probabilities exp(score - lse[r]), and in `grads`, gradients by probability, into
/// gradients by score, p (dp - delta[r]); 0 in both where row r does not see the key (as above).
template <class T>
void softmax_backward_tile(T* scores, T* grads, int64_t rows, int64_t n, int64_t stride, int64_t visible, const T* lse,
                           const T* delta);

/// y = a * x
template <class T>
void scale_row(T a, const T* x, int64_t n, T* y);

}  // namespace mythos::cpu
