// Softmax of a row, and over the rows of a tile, column by column: the LM head keeps logits as [vocabulary, positions],
// so that neighbouring positions fill the vector registers. T is float or double.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// For each of `columns` columns of tile[rows, stride]: top = the largest value, sum = sum of exp(value - top); the
/// tile holds exp(value - top) afterwards.
template <class T>
void exp_columns(T* tile, int64_t rows, int64_t stride, int64_t columns, T* top, T* sum);

/// row = softmax(row), n > 0.
template <class T>
void softmax_row(T* row, int64_t n);

/// row[j] *= factor[j]
template <class T>
void multiply_row(const T* factor, int64_t n, T* row);

}  // namespace mythos::cpu
