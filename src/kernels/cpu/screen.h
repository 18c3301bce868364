// Products of whole numbers with a large matrix, read once at the speed of memory: what kernels/screened_head.h asks.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// Largest size of the numbers in x of screen_rows() for sums of k products with int8 that fit 32 bits.
constexpr int64_t screen_range(int64_t k) {
  const int64_t most = INT32_MAX / (127 * (k > 0 ? k : 1));
  return most < INT16_MAX ? most : INT16_MAX;
}

/// out[r][j] = sum_i x[r][i] * w[j][i], exactly, for r < rows and j < n. x: [rows, k], w: [n, k], both dense; rows of
/// out are ldo apart.
void screen_rows(int64_t rows, int64_t k, const int16_t* x, int64_t n, const int8_t* w, int32_t* out, int64_t ldo);

/// What quantise_row() found: |w - scale * q| and |scale * q| as vectors' lengths, rounded up; |w|, likewise.
struct QuantisedRow {
  float scale = 0, error = 0, length = 0, whole = 0;
};
/// q = round(w / scale), -127 to 127. All of it is NaN where w is not finite.
QuantisedRow quantise_row(int64_t k, const float* w, int8_t* q);

}  // namespace mythos::cpu
