// The story of scripts/rehearsal with a small model: a hub, a disk that fills, S3, kills, and what came of it.
#include "../support/program.h"

namespace mythos::testing {
namespace {

TEST(Rehearsal, OfASmallModel) {
  Program::Options options;
  options.program = MYTHOS_TEST_DIR "/../scripts/rehearsal";
  const Outcome outcome = run_program({"--small"}, options);
  constexpr int something_is_missing = 77;
  if (outcome.code == something_is_missing) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("ACT 5"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace mythos::testing
