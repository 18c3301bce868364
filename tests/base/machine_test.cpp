#include "base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

namespace mythos {
namespace {

TEST(Machine, ThePeakOfResidentMemoryCanBeginAnew) {
  if (::access("/proc/self/clear_refs", W_OK) != 0) GTEST_SKIP() << "the system does not let a process do that";
  constexpr int64_t large = int64_t{256} << 20;
  reset_peak_resident_bytes();
  const int64_t before = peak_resident_bytes();
  { const std::vector<char> touched(large, 1); }
  EXPECT_GE(peak_resident_bytes(), before + large / 2);
  EXPECT_LT(resident_bytes(), before + large / 2) << "the vector is still there";
  reset_peak_resident_bytes();
  EXPECT_LT(peak_resident_bytes(), before + large / 2);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
}

}  // namespace
}  // namespace mythos
