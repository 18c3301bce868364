#include "train_testing.h"

#include <regex>

namespace mythos::testing {
namespace {

class SignalTest : public TrainTest {
 protected:
  static constexpr int64_t steps = 100;
  const std::vector<std::string> overrides_ = {"train.steps=100", "checkpoint.every=1000"};

  // Started, and a few steps on.
  std::unique_ptr<Program> running(std::vector<std::string> more = {}) {
    more.insert(more.end(), overrides_.begin(), overrides_.end());
    const size_t before = steps_in(tiny_.run() / "metrics.jsonl").size();
    auto p = program(more);
    EXPECT_TRUE(p->wait_until([&] { return lines_of(tiny_.run() / "metrics.jsonl").size() >= before + 3; }))
        << p->err();
    return p;
  }
};

TEST_F(SignalTest, TheFirstSignalSavesTheLastCompletedStepAndEndsWith128PlusItsNumber) {
  start({"train.steps=100", "checkpoint.every=1000"}, elsewhere());
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    const auto p = running();
    p->signal(number);
    EXPECT_EQ(p->wait(), 128 + number) << p->err();
    const auto last = steps_in(tiny_.run() / "metrics.jsonl").size();
    EXPECT_EQ(newest(tiny_.run()), static_cast<int64_t>(last));
    EXPECT_LT(static_cast<int64_t>(last), steps);
    const std::string text = log_of(tiny_.run());
    EXPECT_NE(text.find(fmt::format("stopping on signal {} after step {}", number, last)), std::string::npos) << text;
    EXPECT_NE(text.find("the same command goes on"), std::string::npos);
  }
  EXPECT_EQ(start(overrides_).step, steps);
  expect_same_state(TinyRun::checkpoint_of(elsewhere(), steps), tiny_.checkpoint(steps));
  expect_metrics(tiny_.run(), steps, steps);
  // The log of all four starts is kept.
  const std::string text = log_of(tiny_.run());
  const std::regex going_on("going on from");
  EXPECT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), going_on), {}), 3);
}

TEST_F(SignalTest, TheUnfinishedAccumulationIsDropped) {
  // 40 micro-batches are a step: the stop comes in the middle of one.
  const std::vector<std::string> o = {"train.global_batch_tokens=1280", "train.steps=40", "checkpoint.every=1000"};
  const auto p = program(o);
  ASSERT_TRUE(p->wait_until([&] { return !lines_of(tiny_.run() / "metrics.jsonl").empty(); })) << p->err();
  p->signal(SIGTERM);
  EXPECT_EQ(p->wait(), 128 + SIGTERM);
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  const Checkpoint c = Checkpoint::open(tiny_.checkpoint(static_cast<int64_t>(lines.size())));
  EXPECT_EQ(c.meta.tokens, static_cast<int64_t>(lines.size()) * 1280);
  EXPECT_EQ(c.meta.data["rows"], static_cast<int64_t>(lines.size()) * 80);
  auto one_more = o;
  one_more.emplace_back("train.max_hours=1e-9");
  const TrainResult r = start(one_more);
  start(one_more, elsewhere());
  while (newest(elsewhere()) < r.step) start(one_more, elsewhere());
  expect_same_state(TinyRun::checkpoint_of(elsewhere(), r.step), tiny_.checkpoint(r.step));
}

TEST_F(SignalTest, TheSecondSignalEndsAtOnceAndHarmsNothing) {
  const auto p = running({"checkpoint.every=2"});
  p->signal(SIGTERM);
  p->signal(SIGINT);
  const int code = p->wait();
  EXPECT_TRUE(code == 128 + SIGTERM || code == 128 + SIGINT) << code;
  EXPECT_EQ(log_of(tiny_.run()).find("the same command goes on"), std::string::npos) << "it saved after all";
  if (newest(tiny_.run()) > 0) Checkpoint::open(tiny_.checkpoint(newest(tiny_.run()))).verify();
  const int64_t before = newest(tiny_.run());
  auto one_more = overrides_;
  one_more.emplace_back("train.max_hours=1e-9");
  EXPECT_EQ(start(one_more).step, before + 1);
}

TEST_F(SignalTest, AStopBeforeTheFirstStepSavesNothing) {
  mythos::Run run = prepare_run(request());
  install_stop_handlers();
  ::raise(SIGTERM);
  const TrainResult r = train(run);
  EXPECT_EQ(r.exit_code, 128 + SIGTERM);
  EXPECT_EQ(r.step, 0);
  EXPECT_TRUE(r.checkpoint.empty());
  EXPECT_EQ(newest(tiny_.run()), 0);
}

// P7: while the held-out loss is measured.
TEST_F(SignalTest, AStopDuringAnEvaluationIsHeard) {
  write_text(tiny_.folder() / "long.txt", joined(generated_documents(4'000'000, 9)));
  const auto p = program({"train.steps=100", "log.eval_every=3", "checkpoint.every=1000", "data.validation_documents=0",
                          "data.validation_source=" + (tiny_.folder() / "long.txt").string()});
  ASSERT_TRUE(p->wait_until([&] { return steps_in(tiny_.run() / "metrics.jsonl").size() >= 3; })) << p->err();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  p->signal(SIGTERM);
  EXPECT_EQ(p->wait(), 128 + SIGTERM);
  EXPECT_EQ(newest(tiny_.run()), 3);
  EXPECT_EQ(read_file(tiny_.run() / "metrics.jsonl").find("held_out"), std::string::npos);
}

}  // namespace
}  // namespace mythos::testing
