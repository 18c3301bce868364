// exp for the row kernels: inlined, without branches or calls in float, so that loops around it vectorise.
#pragma once

#include <cmath>
#include <cstdint>

#define MYTHOS_INLINE inline __attribute__((always_inline))

namespace mythos::cpu {

/// Within 1.5 units in the last place for -87 <= x <= 88. Below that range the result stays at exp(-87), about 1.6e-38,
/// above it at exp(88), about 1.7e38: never 0, never infinite. NaN stays NaN.
MYTHOS_INLINE float exp_of(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: the integer part lands in the low mantissa bits
  const float k = shifted - 12582912.0F;
  const float r = (x - k * 0.693359375F) + k * 2.12194440e-4F;  // ln 2 in two parts, the first exact in a product
  // 1 + r + c2 r^2 + ... + c6 r^6 with the smallest largest relative error for |r| <= ln(2) / 2: 3e-9.
  float p = 1.38146096e-3F;
  p = p * r + 8.36871120e-3F;
  p = p * r + 4.16683875e-2F;
  p = p * r + 0.166665207F;
  p = p * r + 0.499999935F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The builtin, because a call of std::bit_cast is not inlined into clones for other instruction sets.
  return p * __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) + 127U) << 23U);
}
MYTHOS_INLINE double exp_of(double x) { return std::exp(x); }

}  // namespace mythos::cpu
