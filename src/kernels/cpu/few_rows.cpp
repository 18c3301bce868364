#include "kernels/cpu/few_rows.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/lanes.h"

#include <vector>

namespace mythos::cpu {
namespace {

MYTHOS_INLINE float wide(float v) { return v; }
MYTHOS_INLINE double wide(double v) { return v; }
MYTHOS_INLINE float wide(Bf16 v) { return __builtin_bit_cast(float, static_cast<uint32_t>(v.bits) << 16U); }

// Eight numbers in the compiler's own vector type: what the processor lacks is made of halves. (Loops over arrays of
// sums are kept in memory instead of registers.)
constexpr int64_t eight = 8;
template <class T>
struct Eight {
  typedef T Type __attribute__((vector_size(eight * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vector = typename Eight<T>::Type;

template <class T>
MYTHOS_INLINE const Vector<T>& at(const T* p) {
  return *reinterpret_cast<const Vector<T>*>(p);
}

// What sum_lanes() does after its first step.
template <class T>
MYTHOS_INLINE T sum_of(const Vector<T>& v) {
  const auto four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  const auto two = __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
  return two[0] + two[1];
}

// Sixteen weights as two vectors. Of bfloat16 the even ones and the odd ones: a shift and a mask of what lies there,
// which is cheaper than spreading them in their order; few_rows() lays out x alike.
template <class T>
MYTHOS_INLINE void load_pair(const T* p, Vector<T>& first, Vector<T>& second) {
  first = at(p);
  second = at(p + eight);
}
MYTHOS_INLINE void load_pair(const Bf16* p, Vector<float>& first, Vector<float>& second) {
  const Vector<uint32_t> both = at(reinterpret_cast<const uint32_t*>(p));
  first = (Vector<float>)(both << 16U);
  second = (Vector<float>)(both & 0xFFFF0000U);
}
// The same order for x: 0 2 4 .. 14 1 3 .. 15 of each sixteen; what is left over stays.
void even_and_odd(int64_t rows, int64_t k, const float* x, int64_t ldx, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t i = 0;
    for (; i + lanes <= k; i += lanes) {
      for (int64_t l = 0; l < eight; ++l) {
        out[r * k + i + l] = x[r * ldx + i + 2 * l];
        out[r * k + i + eight + l] = x[r * ldx + i + 2 * l + 1];
      }
    }
    for (; i < k; ++i) out[r * k + i] = x[r * ldx + i];
  }
}

// R rows of x against J rows of w, `ldw` apart, whose results are `ldj` apart. The sums of one pair are the same
// whatever R and J: 16 lanes, added in order.
template <int R, int J, class T, class W>
MYTHOS_INLINE void dots(int64_t k, const T* x, int64_t ldx, const W* w, int64_t ldw, T* out, int64_t ldo, int64_t ldj) {
  // Processors do not fetch ahead across pages by themselves.
  constexpr int64_t ahead = 1024 / static_cast<int64_t>(sizeof(W));
  Vector<T> low[R][J] = {}, high[R][J] = {};
  int64_t i = 0;
  for (; i + lanes <= k; i += lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      __builtin_prefetch(w + j * ldw + i + ahead);
      Vector<T> a, b;
      load_pair(w + j * ldw + i, a, b);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        low[r][j] += at(x + r * ldx + i) * a;
        high[r][j] += at(x + r * ldx + i + eight) * b;
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) {
      if (i == k) {
        out[r * ldo + j * ldj] = sum_of<T>(low[r][j] + high[r][j]);
        continue;
      }
      T acc[lanes];
      *reinterpret_cast<Vector<T>*>(acc) = low[r][j];
      *reinterpret_cast<Vector<T>*>(acc + eight) = high[r][j];
      for (int64_t l = 0; i + l < k; ++l) acc[l] += x[r * ldx + i + l] * wide(w[j * ldw + i + l]);
      out[r * ldo + j * ldj] = sum_lanes(acc);
    }
  }
}

template <int R, int J, class T, class W>
MYTHOS_INLINE void some_rows(int64_t k, const T* x, int64_t ldx, int64_t n, const W* w, int64_t ldw, T* out,
                             int64_t ldo) {
  int64_t j = 0;
  for (; j + J <= n; j += J) dots<R, J>(k, x, ldx, w + j * ldw, ldw, out + j, ldo, 1);
  for (; j < n; ++j) dots<R, 1>(k, x, ldx, w + j * ldw, ldw, out + j, ldo, 1);
}

// One row of x: w is read once, from memory. Four places of it at a time, each read on from where it was: so many
// requests are under way as hide the distance (one place reaches two thirds of that, rows side by side four fifths).
template <class T, class W>
MYTHOS_INLINE void one_row(int64_t k, const T* x, int64_t n, const W* w, int64_t ldw, T* out) {
  constexpr int places = 4;
  const int64_t each = n / places;
  for (int64_t j = 0; j < each; ++j) dots<1, places>(k, x, 0, w + j * ldw, each * ldw, out + j, 0, each);
  for (int64_t j = places * each; j < n; ++j) dots<1, 1>(k, x, 0, w + j * ldw, ldw, out + j, 0, 1);
}

// Rows of w that stay in the second cache while all rows of x pass.
constexpr int64_t block_bytes = 128 << 10;

template <class T, class W>
MYTHOS_INLINE void few_rows_body(int64_t rows, int64_t k, const T* x, int64_t ldx, int64_t n, const W* w, int64_t ldw,
                                 T* out, int64_t ldo) {
  if (rows == 1) return one_row(k, x, n, w, ldw, out);
  const int64_t row_bytes = (k > 0 ? k : 1) * static_cast<int64_t>(sizeof(W));
  const int64_t block = block_bytes / row_bytes / 4 * 4 + 4;
  for (int64_t j = 0; j < n; j += block) {
    const int64_t size = n - j < block ? n - j : block;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) some_rows<4, 1>(k, x + r * ldx, ldx, size, w + j * ldw, ldw, out + r * ldo + j, ldo);
    for (; r + 2 <= rows; r += 2) some_rows<2, 2>(k, x + r * ldx, ldx, size, w + j * ldw, ldw, out + r * ldo + j, ldo);
    for (; r < rows; ++r) some_rows<1, 4>(k, x + r * ldx, ldx, size, w + j * ldw, ldw, out + r * ldo + j, ldo);
  }
}

template <class T, class W>
MYTHOS_INLINE void weighted_rows_body(int64_t n, int64_t k, const T* __restrict a, const W* __restrict w, int64_t ldw,
                                      T* __restrict y) {
  for (int64_t i = 0; i < k; ++i) y[i] = 0;
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) {
    const T a0 = a[j], a1 = a[j + 1], a2 = a[j + 2], a3 = a[j + 3];
    const W* __restrict w0 = w + j * ldw;
    const W* __restrict w1 = w0 + ldw;
    const W* __restrict w2 = w1 + ldw;
    const W* __restrict w3 = w2 + ldw;
    for (int64_t i = 0; i < k; ++i) {
      y[i] = (((y[i] + a0 * wide(w0[i])) + a1 * wide(w1[i])) + a2 * wide(w2[i])) + a3 * wide(w3[i]);
    }
  }
  for (; j < n; ++j) {
    for (int64_t i = 0; i < k; ++i) y[i] += a[j] * wide(w[j * ldw + i]);
  }
}

}  // namespace

// clang-format off
#define MYTHOS_FEW_ROWS(T, W, NAME)                                                                                         \
  MYTHOS_CLONES void NAME(int64_t rows, int64_t k, const T* x, int64_t ldx, int64_t n, const W* w, int64_t ldw,       \
                          T* out, int64_t ldo) {                                                                      \
    few_rows_body(rows, k, x, ldx, n, w, ldw, out, ldo);                                                              \
  }                                                                                                                   \
  template <> MYTHOS_CLONES void weighted_rows(int64_t n, int64_t k, const T* a, const W* w, int64_t ldw, T* y) {     \
    weighted_rows_body(n, k, a, w, ldw, y);                                                                           \
  }
MYTHOS_FEW_ROWS(float, float, few_rows_of_floats)
MYTHOS_FEW_ROWS(float, Bf16, few_rows_of_bf16)
MYTHOS_FEW_ROWS(double, double, few_rows_of_doubles)
// clang-format on

template <>
void few_rows(int64_t rows, int64_t k, const float* x, int64_t ldx, int64_t n, const float* w, int64_t ldw, float* out,
              int64_t ldo) {
  few_rows_of_floats(rows, k, x, ldx, n, w, ldw, out, ldo);
}
template <>
void few_rows(int64_t rows, int64_t k, const float* x, int64_t ldx, int64_t n, const Bf16* w, int64_t ldw, float* out,
              int64_t ldo) {
  thread_local std::vector<float> laid_out;  // kept: decoding comes here hundreds of times a token
  laid_out.resize(static_cast<size_t>(rows * k));
  even_and_odd(rows, k, x, ldx, laid_out.data());
  few_rows_of_bf16(rows, k, laid_out.data(), k, n, w, ldw, out, ldo);
}
template <>
void few_rows(int64_t rows, int64_t k, const double* x, int64_t ldx, int64_t n, const double* w, int64_t ldw,
              double* out, int64_t ldo) {
  few_rows_of_doubles(rows, k, x, ldx, n, w, ldw, out, ldo);
}

}  // namespace mythos::cpu
