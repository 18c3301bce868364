// Stopped, killed, damaged and gone on with: the same numbers as a run that nothing happened to.
#include "train_testing.h"

namespace mythos::testing {
namespace {

class ResumeTest : public TrainTest {};

const std::vector<std::string> both_separators = {"data.document_separator=false", "data.document_separator=true"};

TEST_F(ResumeTest, ARunStoppedAfterEveryStepEqualsOneThatWasNot) {
  for (const auto& separator : both_separators) {
    const fs::path whole = elsewhere(separator + "_whole");
    const fs::path parts = elsewhere(separator + "_parts");
    start({separator, "train.steps=12"}, whole);
    // The limit of time is reached after each step.
    for (int64_t n = 1; n <= 12; ++n) {
      const TrainResult r = start({separator, "train.steps=12", "train.max_hours=1e-9"}, parts);
      EXPECT_EQ(r.step, n);
      EXPECT_EQ(r.exit_code, 0);
      EXPECT_EQ(r.finished, n == 12);
      EXPECT_EQ(newest(parts), n);
    }
    expect_same_state(TinyRun::checkpoint_of(whole, 12), TinyRun::checkpoint_of(parts, 12));
    expect_metrics(whole, 12, 12);
    expect_metrics(parts, 12, 12);
    const auto a = steps_in(whole / "metrics.jsonl");
    const auto b = steps_in(parts / "metrics.jsonl");
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"loss", "grad_norm", "loops", "tokens"}) EXPECT_EQ(a[i][key], b[i][key]) << key;
    }
  }
}

TEST_F(ResumeTest, LoopsAreDrawnForEachStep) {
  start({"train.steps=24"});
  std::map<int64_t, int> drawn;
  for (const auto& line : steps_in(tiny_.run() / "metrics.jsonl")) ++drawn[line["loops"].get<int64_t>()];
  EXPECT_EQ(drawn.size(), 3U);
  for (const auto& [loops, times] : drawn) EXPECT_GE(times, 3) << loops;
}

// Saving, running ten steps, loading and running them again.
TEST_F(ResumeTest, TenStepsRunAgainFromACheckpointAreTheSame) {
  start({"train.steps=20", "checkpoint.every=10"});
  const fs::path kept = tiny_.folder() / "first.safetensors";
  fs::rename(tiny_.checkpoint(20), kept);
  EXPECT_EQ(start({"train.steps=20", "checkpoint.every=10"}).step, 20);
  expect_same_state(kept, tiny_.checkpoint(20));
  expect_metrics(tiny_.run(), 20, 20);
}

// Also while a checkpoint is being written: there is one after every step, or as many as can be written meanwhile.
TEST_F(ResumeTest, C1ARunKilledAtAnyInstantGoesOnAsIfItHadNotBeen) {
  const int64_t steps = 240;  // so many that a fast machine is not done before the last kill
  const std::vector<std::string> overrides = {fmt::format("train.steps={}", steps), "checkpoint.every=1"};
  const fs::path whole = elsewhere();
  auto keep_all = overrides;
  keep_all.emplace_back("checkpoint.keep_last=1000");
  start(keep_all, whole);
  for (const auto& separator : both_separators) {
    if (separator.ends_with("true")) {
      keep_all.push_back(separator);
      TrainRequest again = request(keep_all, whole);
      again.fresh = true;
      go(again);
    }
    auto these = overrides;
    these.push_back(separator);
    const bool background = separator.ends_with("true");
    these.push_back(background ? "checkpoint.background=true" : "checkpoint.background=false");
    const fs::path run = elsewhere(separator);
    Random random(derive_seed(20, separator.size(), "kills"));
    int kills = 0;
    while (kills < 8 && newest(run) < steps) {
      const auto p = program(these, run);
      const int64_t before = newest(run);
      // Some are hit while they start, the others a little after they went on.
      if (kills % 4 != 0) p->wait_until([&] { return newest(run) > before; });
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(kills % 4 == 0 ? 400'000 : 50'000)));
      p->signal(SIGKILL);
      if (p->wait() != 128 + SIGKILL) break;  // it was done already
      ++kills;
      const int64_t now = newest(run);
      EXPECT_GE(now, before);
      if (now > 0) {
        Checkpoint::open(TinyRun::checkpoint_of(run, now)).verify();
        expect_same_state(TinyRun::checkpoint_of(whole, now), TinyRun::checkpoint_of(run, now));
      }
    }
    EXPECT_EQ(kills, 8);
    EXPECT_EQ(start(these, run).step, steps);
    expect_same_state(TinyRun::checkpoint_of(whole, steps), TinyRun::checkpoint_of(run, steps));
    expect_metrics(run, steps, steps);
    const auto there = CheckpointStore(run / "checkpoints", 1).list();
    EXPECT_EQ(there.size(), 3U);
    EXPECT_EQ(there.back(), steps);
    if (!background) {
      EXPECT_EQ(there, (std::vector<int64_t>{steps - 2, steps - 1, steps}));
    }
    for (const auto& e : fs::directory_iterator(run / "checkpoints"))
      EXPECT_EQ(e.path().string().find(".tmp-"), std::string::npos) << e.path();
    EXPECT_EQ(read_file(run / "log.txt").find("damaged"), std::string::npos);
  }
}

TEST_F(ResumeTest, ADamagedNewestCheckpointIsSetAsideAndTheOneBeforeUsed) {
  start({}, elsewhere());
  start({"train.max_hours=1e-9"});
  for (int64_t n = 2; n <= 14; ++n) start({"train.max_hours=1e-9"});
  ASSERT_EQ(newest(tiny_.run()), 14);
  const fs::path newest_file = tiny_.checkpoint(14);
  flip_bit(newest_file, fs::file_size(newest_file) - 5000);
  const std::string flipped = read_file(newest_file);
  const fs::path before_it = tiny_.checkpoint(13);
  fs::resize_file(before_it, fs::file_size(before_it) / 2);  // C9
  EXPECT_EQ(start().step, 24);
  expect_same_state(TinyRun::checkpoint_of(elsewhere(), 24), tiny_.checkpoint(24));
  expect_metrics(tiny_.run(), 24, 24);
  EXPECT_EQ(read_file(newest_file.string() + ".damaged"), flipped);
  EXPECT_TRUE(fs::exists(before_it.string() + ".damaged"));
  // Without a good one the run does not begin anew over what is there.
  for (const int64_t step : CheckpointStore(tiny_.run() / "checkpoints", 1).list())
    flip_bit(tiny_.checkpoint(step), 70);
  const auto line = error_of(request(), ExitCode::failed);
  EXPECT_NE(line.find("no checkpoint in"), std::string::npos) << line;
  EXPECT_NE(line.find("--fresh"), std::string::npos) << line;
}

TEST_F(ResumeTest, MeasuringAndSamplingChangeNothing) {
  start({}, elsewhere("plain"));
  start({"log.eval_every=2", "log.sample_every=3", "log.prompts=[\"The old river\", \"\"]", "log.sample_tokens=6"},
        elsewhere("watched"));
  for (const int64_t step : {12, 18, 24}) {
    expect_same_state(TinyRun::checkpoint_of(elsewhere("plain"), step),
                      TinyRun::checkpoint_of(elsewhere("watched"), step));
  }
  int held_out = 0, samples = 0;
  for (const auto& line : lines_of(elsewhere("watched") / "metrics.jsonl")) {
    held_out += line.find("\"held_out\"") != std::string::npos;
    samples += line.find("\"samples\"") != std::string::npos;
  }
  EXPECT_EQ(held_out, 12);
  EXPECT_EQ(samples, 9) << "at the start, after each third step, and at the end";
}

TEST_F(ResumeTest, ARunThatBeginsAgainFromNothingLeavesNoOldLines) {
  const std::vector<std::string> o = {"log.prompts=[\"The\"]", "log.sample_tokens=4"};
  start(o);
  fs::remove_all(tiny_.run() / "checkpoints");
  start(o);
  expect_metrics(tiny_.run(), 24, 24);
  int samples = 0;
  for (const auto& line : lines_of(tiny_.run() / "metrics.jsonl"))
    samples += line.find("\"samples\"") != std::string::npos;
  EXPECT_EQ(samples, 2);
}

TEST_F(ResumeTest, AnotherNumberOfThreadsIsSaid) {
  start({"train.max_hours=1e-9"});
  start({"train.threads=2", "train.max_hours=1e-9"});
  EXPECT_NE(log_of(tiny_.run()).find("this run began with 1 threads and goes on with 2"), std::string::npos);
}

}  // namespace
}  // namespace mythos::testing
