#include "kernels/cpu/screen.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"

#include <cmath>
#include <limits>

namespace mythos::cpu {
namespace {

constexpr int64_t line = 64;  // bytes

MYTHOS_INLINE int32_t dot(int64_t k, const int16_t* x, const int8_t* w) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int16_t a = w[i];
    sum += static_cast<int32_t>(a) * static_cast<int32_t>(x[i]);
  }
  return sum;
}

MYTHOS_INLINE void rows_body(int64_t rows, int64_t k, const int16_t* x, int64_t n, const int8_t* w, int32_t* out,
                             int64_t ldo) {
  // Four places of the matrix at a time, each read on from where it was, with its next row asked for: see few_rows.cpp.
  constexpr int64_t places = 4;
  const int64_t each = n / places;
  for (int64_t j = 0; j < each; ++j) {
    const int8_t* const row = w + j * k;
    for (int64_t i = 0; i < k; i += line) {
      for (int64_t p = 0; p < places; ++p) __builtin_prefetch(row + (p * each + 1) * k + i);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t p = 0; p < places; ++p) out[r * ldo + p * each + j] = dot(k, x + r * k, row + p * each * k);
    }
  }
  for (int64_t j = places * each; j < n; ++j) {
    for (int64_t r = 0; r < rows; ++r) out[r * ldo + j] = dot(k, x + r * k, w + j * k);
  }
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
