// An S3 server that vanishes, comes back, cuts uploads and answers late, and a trainer that is killed meanwhile.
#include "../support/s3_environment.h"
#include "faulty_run.h"

#include "base/random.h"
#include "infer/checkpoint_io.h"

namespace mythos::testing {
namespace {

using test::S3Server;

class S3Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!S3Server::missing().empty()) GTEST_SKIP() << S3Server::missing();
    FaultyRun::undisturbed();
    server_ = std::make_unique<S3Server>();
    server_->ask({{"do", "bucket"}, {"name", "runs"}});
    here_ = std::make_unique<Environment>(s3_environment(*server_));
  }

  Ended start(const FaultyRun& run, const Meets& meets = {}) const {
    return run.start(meets, {}, s3_environment(*server_));
  }
  // Nothing in the way any more: it ends like the undisturbed run.
  void expect_ends_well(const FaultyRun& run) {
    server_->ask({{"do", "clear"}});
    const Ended ended = start(run);
    ASSERT_EQ(ended.code, 0) << ended.err;
    expect_same_state(Checkpoint::open(TinyRun::checkpoint_of(FaultyRun::undisturbed(), total_steps)),
                      open_checkpoint(run.run()));
  }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<Environment> here_;
};

TEST_F(S3Faults, AServerThatVanishesAndComesBack) {
  const FaultyRun run({"checkpoint.every=8", "checkpoint.dir=s3://runs/vanishing"});
  // What is asked about the last checkpoint is never answered to its end. Before it gives up, half a minute goes by.
  server_->ask({{"do", "fault"}, {"path", "step_0000024"}, {"times", 1'000'000}, {"cut", 0}});
  const Ended ended = start(run);
  EXPECT_EQ(ended.code, 1) << "exit 0 without the last state on S3\n" << ended.err;
  EXPECT_NE(ended.err.find("cannot write s3://runs/vanishing/step_0000024.safetensors"), std::string::npos)
      << ended.err;
  server_->ask({{"do", "clear"}});
  EXPECT_EQ(open_checkpoint(run.run()).meta.step, 16);
  expect_ends_well(run);
}

TEST_F(S3Faults, KilledAtAnyInstant) {
  Random random(derive_seed(27, 0, "instants"));
  for (const bool background : {false, true}) {
    const FaultyRun run({"checkpoint.every=2", fmt::format("checkpoint.background={}", background),
                         fmt::format("checkpoint.dir=s3://runs/killed_{}", background)});
    for (int blow = 0; blow < 3; ++blow) {
      // Late answers, so that most of the time an upload is on its way.
      server_->ask({{"do", "fault"}, {"path", "step_"}, {"times", 1'000'000}, {"delay", 0.02}});
      const auto span = static_cast<uint64_t>(2 * FaultyRun::milliseconds());
      const Ended ended = start(run, {.kill_after_ms = static_cast<int>(random.below(span))});
      expect_clean_end(ended, {0, 128 + SIGKILL});
      server_->ask({{"do", "clear"}});
      // What looks complete is.
      const std::string prefix = fmt::format("s3://runs/killed_{}", background);
      const auto steps = CheckpointStore(prefix, 1).list();
      if (!steps.empty()) {
        EXPECT_EQ(open_checkpoint(prefix).meta.step, steps.back());
      }
    }
    expect_ends_well(run);
  }
}

}  // namespace
}  // namespace mythos::testing
