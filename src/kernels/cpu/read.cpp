#include "kernels/cpu/read.h"

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"

namespace mythos::cpu {
namespace {

constexpr int64_t line = 8;  // words: 64 bytes

template <int Streams>
MYTHOS_INLINE uint64_t sum_body(const uint64_t* words, int64_t n) {
  uint64_t acc[line] = {};
  const int64_t part = n / Streams / line * line;
  for (int64_t i = 0; i < part; i += line) {
    for (int s = 0; s < Streams; ++s) {
      const uint64_t* p = words + s * part + i;
      __builtin_prefetch(p + 64 * line);
      for (int64_t j = 0; j < line; ++j) acc[j] += p[j];
    }
  }
  uint64_t sum = 0;
  for (int64_t i = Streams * part; i < n; ++i) sum += words[i];
  for (const uint64_t a : acc) sum += a;
  return sum;
}

}  // namespace

MYTHOS_CLONES uint64_t sum_words(const uint64_t* words, int64_t n, int64_t streams) {
  return streams >= 4 ? sum_body<4>(words, n) : streams >= 2 ? sum_body<2>(words, n) : sum_body<1>(words, n);
}

}  // namespace mythos::cpu
