// Exact attention tile by tile (FlashAttention, Dao et al., 2022; backward by recomputation) for one head on one
// thread: matrix products from kernels/cpu/gemm.h around row kernels. T is float or double, matrices are row-major.
// Queries come multiplied by the scale already. "Diagonal" queries see their prefix of the keys, others all they are
// given.
#pragma once

#include <cstdint>

namespace mythos::cpu {

template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;  ///< from row to row
  int64_t width = 0;

  [[nodiscard]] T* row(int64_t r) const { return data + r * stride; }
};

/// Keys and values. A key may lie in two pieces side by side: `key` meets the queries' first columns, `more`, if it has
/// a width, the rest.
template <class T>
struct Keys {
  Matrix<const T> key, more, value;
};

/// Sizes of the tiles of one problem, chosen by its shape alone, so that results do not depend on threads.
struct AttentionTiles {
  int64_t queries = 0;  ///< rows of a tile
  int64_t keys = 0;     ///< columns of a tile, at least `queries`
  int64_t strip = 0;    ///< rows of the pieces that a tile on the diagonal is cut into, at most `queries`
};

/// Values of T that attend() needs as scratch.
int64_t attend_scratch(const AttentionTiles& tiles, int64_t value_width);

/// softmax(q k^T) v for at most tiles.queries rows of queries. Row r sees the keys 0 .. before - 1 and, where
/// `diagonal`, also before .. before + r. Writes out, and each row's log of its sum of exponentials to lse unless that
/// is null.
template <class T>
void attend(const AttentionTiles& tiles, const Matrix<const T>& queries, int64_t rows, const Keys<T>& keys,
            int64_t before, bool diagonal, T* scratch, const Matrix<T>& out, T* lse);

/// The queries of one head, as its backward pass sees them.
template <class T>
struct HeadGradient {
  Matrix<const T> queries;  ///< all of them
  Matrix<const T> dout;     ///< gradients by the outputs
  const T* lse = nullptr;
  const T* delta = nullptr;  ///< dout . out, row by row
  Matrix<T> dqueries;        ///< added to
};

int64_t attend_backward_scratch(const AttentionTiles& tiles);

/// What one block of at most tiles.keys keys, the first of them number `first`, adds to the gradients: query r sees
/// keys 0 .. offset + r. The key is in one piece; dkey and dvalue are overwritten, dqueries is added to.
template <class T>
void attend_backward(const AttentionTiles& tiles, const HeadGradient<T>& head, int64_t query_count, int64_t offset,
                     const Matrix<const T>& key, const Matrix<const T>& value, int64_t first, int64_t count, T* scratch,
                     const Matrix<T>& dkey, const Matrix<T>& dvalue);

}  // namespace mythos::cpu
