#include "kernels/cpu/attention.h"

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>

namespace mythos::cpu {

int64_t attend_scratch(const AttentionTiles& tiles, int64_t value_width) {
  return tiles.queries * (tiles.keys + value_width + 2);
}

template <class T>
void attend(const AttentionTiles& tiles, const Matrix<const T>& queries, int64_t rows, const Keys<T>& keys,
            int64_t before, bool diagonal, T* scratch, const Matrix<T>& out, T* lse) {
  const int64_t width = keys.value.width;
  T* scores = scratch;
  T* acc = scores + tiles.queries * tiles.keys;
  T* top = acc + tiles.queries * width;
  T* sum = top + tiles.queries;

  const auto tile = [&](int64_t row, int64_t count, int64_t key, int64_t n, int64_t visible) {
    gemm(false, true, count, n, keys.key.width, T(1), queries.row(row), queries.stride, keys.key.row(key),
         keys.key.stride, T(0), scores, n);
    if (keys.more.width > 0) {
      gemm(false, true, count, n, keys.more.width, T(1), queries.row(row) + keys.key.width, queries.stride,
           keys.more.row(key), keys.more.stride, T(1), scores, n);
    }
    const bool first = key == 0;
    softmax_tile(scores, count, n, n, visible, first, top + row, sum + row, acc + row * width, width);
    gemm(false, false, count, width, n, T(1), scores, n, keys.value.row(key), keys.value.stride, first ? T(0) : T(1),
         acc + row * width, width);
  };
  for (int64_t key = 0; key < before; key += tiles.keys) {
    const int64_t n = std::min(tiles.keys, before - key);
    tile(0, rows, key, n, n);
  }
  for (int64_t row = 0; diagonal && row < rows; row += tiles.strip) {
    const int64_t count = std::min(tiles.strip, rows - row);
    tile(row, count, before, row + count, row + 1);
  }

  for (int64_t r = 0; r < rows; ++r) {
    scale_row(T(1) / sum[r], acc + r * width, width, out.row(r));
    if (lse != nullptr) lse[r] = top[r] + std::log(sum[r]);
  }
}

int64_t attend_backward_scratch(const AttentionTiles& tiles) { return 2 * tiles.queries * tiles.keys; }

template <class T>
void attend_backward(const AttentionTiles& tiles, const HeadGradient<T>& head, int64_t query_count, int64_t offset,
                     const Matrix<const T>& key, const Matrix<const T>& value, int64_t first, int64_t count, T* scratch,
                     const Matrix<T>& dkey, const Matrix<T>& dvalue) {
  T* p = scratch;
  T* ds = scratch + tiles.queries * tiles.keys;
  for (int64_t r = 0; r < count; ++r) {
    std::fill_n(dkey.row(r), dkey.width, T(0));
    std::fill_n(dvalue.row(r), dvalue.width, T(0));
  }

  // Rows `row` .. + m over the block's first n keys, of which the first row sees `visible`.
  const auto tile = [&](int64_t row, int64_t m, int64_t n, int64_t visible) {
    const auto& q = head.queries;
    const auto& dout = head.dout;
    const auto& dq = head.dqueries;
    gemm(false, true, m, n, key.width, T(1), q.row(row), q.stride, key.data, key.stride, T(0), p, n);
    gemm(false, true, m, n, value.width, T(1), dout.row(row), dout.stride, value.data, value.stride, T(0), ds, n);
    softmax_backward_tile(p, ds, m, n, n, visible, head.lse + row, head.delta + row);
    gemm(true, false, n, value.width, m, T(1), p, n, dout.row(row), dout.stride, T(1), dvalue.data, dvalue.stride);
    gemm(true, false, n, key.width, m, T(1), ds, n, q.row(row), q.stride, T(1), dkey.data, dkey.stride);
    gemm(false, false, m, key.width, n, T(1), ds, n, key.data, key.stride, T(1), dq.row(row), dq.stride);
  };
  // Query r sees key `first` from r = first - offset on, and the whole block from count - 1 rows later on.
  const int64_t begin = std::max<int64_t>(0, first - offset);
  const int64_t whole = std::clamp<int64_t>(first - offset + count, begin, query_count);
  for (int64_t row = begin; row < whole; row += tiles.strip) {
    const int64_t m = std::min(tiles.strip, whole - row);
    const int64_t visible = row + offset - first + 1;
    tile(row, m, std::min(count, visible + m - 1), visible);
  }
  for (int64_t row = whole; row < query_count; row += tiles.queries) {
    tile(row, std::min(tiles.queries, query_count - row), count, count);
  }
}

#define MYTHOS_ATTENTION(T)                                                                                       \
  template void attend(const AttentionTiles&, const Matrix<const T>&, int64_t, const Keys<T>&, int64_t, bool, T*, \
                       const Matrix<T>&, T*);                                                                     \
  template void attend_backward(const AttentionTiles&, const HeadGradient<T>&, int64_t, int64_t,                  \
                                const Matrix<const T>&, const Matrix<const T>&, int64_t, int64_t, T*,             \
                                const Matrix<T>&, const Matrix<T>&);
MYTHOS_ATTENTION(float)
MYTHOS_ATTENTION(double)
#undef MYTHOS_ATTENTION

}  // namespace mythos::cpu
