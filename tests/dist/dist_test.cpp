// Several ranks against one, for every way of sharing out. Each test starts tests/dist/ranks.cpp under mpirun.
#include "../support/mpirun.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace mythos::testing {
namespace {

using Words = std::vector<std::string>;

// Each case by itself would wait for mpirun most of the time.
void expect_good(int ranks, const std::vector<Words>& cases) {
  Words all = {MYTHOS_RANKS_BINARY, std::to_string(ranks)};
  for (const Words& words : cases) {
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back(",");
  }
  const Outcome outcome = run_ranks(ranks, all);
  EXPECT_EQ(outcome.code, 0) << ranks << " ranks:\n" << outcome.out << outcome.err;
}

TEST(Communicator, CollectivesOverMpi) {
  for (const int ranks : {2, 3, 4}) expect_good(ranks, {{"collectives"}});
}

// What ranks on GPUs agree by, with torchrun's environment and no torchrun.
TEST(Communicator, CollectivesOverAStore) {
  constexpr int ranks = 3;
  std::vector<std::unique_ptr<Program>> programs;
  // A port that nobody has, most likely.
  const std::string port = std::to_string(20'000 + ::getpid() % 20'000);
  for (int r = 0; r < ranks; ++r) {
    Program::Options options;
    options.program = MYTHOS_RANKS_BINARY;
    options.environment = {{"RANK", std::to_string(r)},
                           {"LOCAL_RANK", std::to_string(r)},
                           {"WORLD_SIZE", std::to_string(ranks)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", port}};
    programs.push_back(
        std::make_unique<Program>(Words{std::to_string(ranks), "collectives", "large", "5000"}, options));
  }
  for (auto& p : programs) EXPECT_EQ(p->wait(), 0) << p->out() << p->err();
}

// Each way of sharding, by the number of ranks it is tried with: numbers that divide nothing among them.
struct Mode {
  int ranks;
  std::string name;
  std::string group = "1";
};
const std::vector<Mode> modes = {{2, "none"}, {2, "optimizer"},  {2, "full"},      {2, "hybrid", "1"},
                                 {3, "none"}, {3, "full"},       {3, "optimizer"}, {3, "hybrid", "3"},
                                 {4, "full"}, {4, "hybrid", "2"}};

// In all of them.
void expect_good_in_all_modes(const std::vector<Words>& cases) {
  for (const int ranks : {2, 3, 4}) {
    std::vector<Words> all;
    for (const Mode& mode : modes) {
      if (mode.ranks != ranks) continue;
      for (Words words : cases) {
        words.insert(words.end(), {"mode", mode.name, "group", mode.group});
        all.push_back(std::move(words));
      }
    }
    expect_good(ranks, all);
  }
}

TEST(Ranks, EqualOneOfAllTheirRows) {
  expect_good_in_all_modes({{"equal", "type", "double"}, {"equal", "type", "float"}});
}

// bfloat16 copies to compute with, float masters and sums.
TEST(Ranks, ComputeInBfloat16) {
  expect_good(2, {{"equal", "type", "bf16", "mode", "full"}, {"equal", "type", "bf16", "mode", "optimizer"}});
}

TEST(Ranks, EqualOneWithRecomputation) {
  expect_good(2, {{"equal", "mode", "full", "recompute", "loop"}, {"equal", "mode", "optimizer", "recompute", "loop"}});
}

TEST(Ranks, EqualOneWhenGradientsMoveAfterEveryMicroStep) {
  expect_good(3, {{"equal", "type", "double", "mode", "full", "reduce", "micro_step"},
                  {"equal", "type", "float", "mode", "full", "reduce", "micro_step"},
                  {"bytes", "mode", "full", "reduce", "micro_step"}});
  expect_good(4, {{"equal", "type", "double", "mode", "hybrid", "group", "2", "reduce", "micro_step"}});
}

// M1
TEST(Ranks, BalanceTheirExpertsTogether) {
  expect_good(3, {{"equal", "type", "double", "mode", "none", "balance", "0.01"},
                  {"equal", "type", "double", "mode", "full", "balance", "0.01"}});
}

// R6
TEST(Ranks, ANumberThatIsNoneOnOneLeavesTheStepOutOnAll) { expect_good_in_all_modes({{"nan"}}); }

// P4
TEST(Ranks, ThatWouldStopAtDifferentLoopsRunTheSame) {
  for (const int ranks : {2, 3}) expect_good(ranks, {{"halting", "mode", "none"}, {"halting", "mode", "full"}});
}

// P4
TEST(Ranks, AnExpertIdleOnOneStopsNobody) {
  expect_good(2, {{"idle", "mode", "none"}, {"idle", "mode", "optimizer"}, {"idle", "mode", "full"}});
}

// R4, R5
TEST(Ranks, TargetsCountAlikeWhereverTheyAre) {
  expect_good(4, {{"targets", "mode", "none"}, {"targets", "mode", "full"}});
}

TEST(Ranks, SendWhatTheyMustAndNoMore) {
  for (const int ranks : {2, 3}) {
    expect_good(ranks, {{"bytes", "mode", "none"}, {"bytes", "mode", "optimizer"}, {"bytes", "mode", "full"}});
  }
}

}  // namespace
}  // namespace mythos::testing
