// The row kernels' own exp, for each way the compiler may contract it.
#include "kernels/cpu/exp.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace mythos {
namespace {

struct Accuracy {
  double worst = 0;  // relative
  float at = 0;
  double worst_fall = 0;  // of the result from one float to the next, relative: 0 if monotone
};

// Every 487th float of [-87, 88], and its neighbour.
MYTHOS_INLINE Accuracy measure() {
  Accuracy a;
  for (uint32_t bits = 0; bits <= 0x42B00000U; bits += 487) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x < -87.0F) continue;
      const float y = cpu::exp_of(x);
      const double exact = std::exp(static_cast<double>(x));
      const double error = std::abs(static_cast<double>(y) - exact) / exact;
      if (!(error <= a.worst)) a = {error, x, a.worst_fall};
      const float next = cpu::exp_of(std::nextafter(x, 100.0F));
      if (next < y) a.worst_fall = std::max(a.worst_fall, (static_cast<double>(y) - static_cast<double>(next)) / exact);
    }
  }
  return a;
}

void check(const Accuracy& a) {
  EXPECT_LE(a.worst, 1.6e-7) << "at " << a.at;
  EXPECT_LE(a.worst_fall, 1.2e-7);
}

__attribute__((noinline)) Accuracy measure_plain() { return measure(); }
#if defined(__x86_64__)
__attribute__((noinline, target("avx2,fma"))) Accuracy measure_fused() { return measure(); }
#endif

TEST(Exp, IsWithinOneAndAHalfUnitsInTheLastPlace) {
  check(measure_plain());
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check(measure_fused());
#endif
}

TEST(Exp, EndsAreFiniteAndNaNStaysNaN) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::exp_of(0.0F), 1.0F);
  EXPECT_EQ(cpu::exp_of(-inf), cpu::exp_of(-87.0F));
  EXPECT_EQ(cpu::exp_of(-1e30F), cpu::exp_of(-87.0F));
  EXPECT_GT(cpu::exp_of(-inf), std::numeric_limits<float>::min());  // not a denormal
  EXPECT_EQ(cpu::exp_of(inf), cpu::exp_of(88.0F));
  EXPECT_LT(cpu::exp_of(inf), inf);
  for (const uint32_t bits : {0x7FC00000U, 0xFFC00000U, 0x7FFFFFFFU, 0x7F800001U}) {
    EXPECT_TRUE(std::isnan(cpu::exp_of(std::bit_cast<float>(bits))));
  }
}

}  // namespace
}  // namespace mythos
