#include "kernels/cpu/screen.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"

#include <cmath>
#include <limits>

namespace mythos::cpu {
namespace {

constexpr int64_t line = 64;     // bytes
constexpr int64_t piece = 256;   // columns between two looks ahead; a loop of this length is all vectors
constexpr int64_t ahead = 1024;  // bytes: processors do not fetch ahead across pages by themselves

// sums[r] += x[r] . w for R rows of x, ldx apart: w is widened once for all of them.
template <int R>
MYTHOS_INLINE void dots(int64_t n, const int16_t* x, int64_t ldx, const int8_t* w, int32_t* sums) {
  static_assert(R == 1 || R == 4);
  int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int16_t a = w[i];
    s0 += static_cast<int32_t>(a) * static_cast<int32_t>(x[i]);
    if constexpr (R == 4) {
      s1 += static_cast<int32_t>(a) * static_cast<int32_t>(x[ldx + i]);
      s2 += static_cast<int32_t>(a) * static_cast<int32_t>(x[2 * ldx + i]);
      s3 += static_cast<int32_t>(a) * static_cast<int32_t>(x[3 * ldx + i]);
    }
  }
  sums[0] += s0;
  if constexpr (R == 4) {
    sums[1] += s1;
    sums[2] += s2;
    sums[3] += s3;
  }
}

// R rows of x with P rows of w, `step` bytes apart, whose results are `ldj` apart.
template <int R, int P>
MYTHOS_INLINE void some_rows(int64_t k, const int16_t* x, const int8_t* w, int64_t step, int32_t* out, int64_t ldo,
                             int64_t ldj) {
  int32_t sums[P][R] = {};
  int64_t i = 0;
  for (; i + piece <= k; i += piece) {
    for (int p = 0; p < P; ++p) {
      for (int64_t b = 0; b < piece; b += line) __builtin_prefetch(w + p * step + i + ahead + b);
      dots<R>(piece, x + i, k, w + p * step + i, sums[p]);
    }
  }
  for (int p = 0; p < P; ++p) {
    if (i < k) dots<R>(k - i, x + i, k, w + p * step + i, sums[p]);
    for (int r = 0; r < R; ++r) out[r * ldo + p * ldj] = sums[p][r];
  }
}

template <int P>
MYTHOS_INLINE void all_rows(int64_t rows, int64_t k, const int16_t* x, const int8_t* w, int64_t step, int32_t* out,
                            int64_t ldo, int64_t ldj) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) some_rows<4, P>(k, x + r * k, w, step, out + r * ldo, ldo, ldj);
  for (; r < rows; ++r) some_rows<1, P>(k, x + r * k, w, step, out + r * ldo, ldo, ldj);
}

MYTHOS_INLINE void rows_body(int64_t rows, int64_t k, const int16_t* x, int64_t n, const int8_t* w, int32_t* out,
                             int64_t ldo) {
  // Four places of the matrix at a time, each read on from where it was: see few_rows.cpp.
  constexpr int places = 4;
  const int64_t each = n / places;
  for (int64_t j = 0; j < each; ++j) all_rows<places>(rows, k, x, w + j * k, each * k, out + j, ldo, each);
  for (int64_t j = places * each; j < n; ++j) all_rows<1>(rows, k, x, w + j * k, 0, out + j, ldo, 0);
}

// A little more than the double, as a float: what was left out in making it is far smaller.
MYTHOS_INLINE float up(double v) { return static_cast<float>(v * (1 + 1e-6)) + std::numeric_limits<float>::min(); }

MYTHOS_INLINE QuantisedRow quantise_body(int64_t k, const float* w, int8_t* q) {
  float most = 0, sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float size = w[i] < 0 ? -w[i] : w[i];
    most = size > most ? size : most;
    sum += w[i] - w[i];  // NaN where w is not finite
  }
  if (!(sum == 0)) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, nan, nan, nan};
  }
  const float scale = most / 127;
  const float inverse = scale > 0 ? 1 / scale : 0;
  const bool usable = inverse < std::numeric_limits<float>::max();  // a scale that is nearly 0 has none
  double error = 0, length = 0, whole = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float near = usable ? w[i] * inverse : 0;
    const float bounded = near > 127 ? 127 : near < -127 ? -127 : near;
    q[i] = static_cast<int8_t>(bounded < 0 ? bounded - 0.5F : bounded + 0.5F);
    const double kept = static_cast<double>(scale) * q[i], left = static_cast<double>(w[i]) - kept;
    error += left * left;
    length += kept * kept;
    whole += static_cast<double>(w[i]) * static_cast<double>(w[i]);
  }
  return {scale, up(std::sqrt(error)), up(std::sqrt(length)), up(std::sqrt(whole))};
}

}  // namespace

MYTHOS_CLONES void screen_rows(int64_t rows, int64_t k, const int16_t* x, int64_t n, const int8_t* w, int32_t* out,
                               int64_t ldo) {
  rows_body(rows, k, x, n, w, out, ldo);
}

MYTHOS_CLONES QuantisedRow quantise_row(int64_t k, const float* w, int8_t* q) { return quantise_body(k, w, q); }

}  // namespace mythos::cpu
