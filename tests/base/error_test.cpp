#include "base/error.h"

#include <gtest/gtest.h>

namespace mythos {
namespace {

TEST(Error, LineIsTheSentenceAndTheHintInBrackets) {
  EXPECT_EQ(failure("cannot read a.txt: it is a folder").line(), "cannot read a.txt: it is a folder");
  EXPECT_EQ(failure("the disk is full", "free 3 GB").line(), "the disk is full (free 3 GB)");
  EXPECT_EQ(failure("the disk is full", "free 3 GB").hint(), "free 3 GB");
}

TEST(Error, EachKindCarriesItsExitCode) {
  EXPECT_EQ(static_cast<int>(failure("x").code()), 1);
  EXPECT_EQ(static_cast<int>(usage_error("x").code()), 2);
  EXPECT_EQ(static_cast<int>(refusal("x").code()), 3);
}

TEST(Error, IsAnOrdinaryException) {
  try {
    throw refusal("needs 12 GB, 3 GB free", "choose another folder");
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "needs 12 GB, 3 GB free");
  }
}

}  // namespace
}  // namespace mythos
