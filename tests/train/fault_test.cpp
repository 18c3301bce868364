// Numbers that blow up, disks that are full, folders that cannot be written.
#include "train_testing.h"

#include "checkpoint/layout.h"
#include "infer/checkpoint_io.h"

#include <sys/mount.h>

namespace mythos::testing {
namespace {

class FaultTest : public TrainTest {
 protected:
  // The newest checkpoint again, with numbers so large that a forward pass overflows.
  void blow_up(int64_t step, float value) {
    const Checkpoint c = Checkpoint::open(tiny_.checkpoint(step));
    std::vector<std::vector<float>> numbers;
    std::vector<TensorBytes> tensors;
    for (TensorInfo& info : checkpoint_tensors(c.meta.model)) {
      auto& n = numbers.emplace_back(static_cast<size_t>(info.numel()));
      const auto bytes = c.file.data(c.file.at(info.name));
      std::memcpy(n.data(), bytes.data(), bytes.size());
      if (info.name == "model.embed.weight") std::fill(n.begin(), n.end(), value);
      tensors.push_back({std::move(info), {}});
    }
    for (size_t i = 0; i < numbers.size(); ++i) tensors[i].data = std::as_bytes(std::span(numbers[i]));
    CheckpointMeta meta = c.meta;
    save_checkpoint(tiny_.checkpoint(step), meta, tensors);
  }
};

// A small file system of its own, or a skipped test.
class SmallDisk {
 public:
  SmallDisk(const fs::path& at, int64_t bytes, unsigned long flags = 0) : at_(at) {
    fs::create_directories(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", flags, fmt::format("size={}", bytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  fs::path at_;
  bool mounted_ = false;
};

// C6
TEST_F(FaultTest, ALossThatStaysNotFiniteStopsTheRunBeforeTheWeightsAreTouched) {
  for (int i = 0; i < 3; ++i) start({"train.max_hours=1e-9"});
  blow_up(3, 3e38F);
  const auto before = snapshot(tiny_.run() / "checkpoints");
  const auto line = error_of(request({"checkpoint.every=1"}), ExitCode::failed);
  EXPECT_NE(line.find("step 4 is still not finite after going back 3 times"), std::string::npos) << line;
  EXPECT_NE(line.find("is intact"), std::string::npos) << line;
  EXPECT_NE(line.find(tiny_.checkpoint(3).string()), std::string::npos) << line;
  EXPECT_NE(line.find("train.lr"), std::string::npos) << line;
  EXPECT_EQ(snapshot(tiny_.run() / "checkpoints"), before);
  Checkpoint::open(tiny_.checkpoint(3)).verify();
  // Fed with the one before, the run goes on.
  fs::rename(tiny_.checkpoint(3), tiny_.folder() / "blown_up");
  EXPECT_EQ(start().step, 24);
}

TEST_F(FaultTest, AnAbsurdLearningRateNeverEndsInASavedNaN) {
  write_text(tiny_.folder() / "wild.toml", read_file(tiny_.config()));
  TrainRequest r =
      request({"train.lr=1", "train.clip=0", "train.warmup_steps=0", "train.weight_decay=10", "checkpoint.every=1",
               "train.steps=30", "train.schedule=constant", "checkpoint.keep_last=100"});
  int code = 0;
  try {
    go(r);
  } catch (const Error& e) {
    code = static_cast<int>(e.code());
  }
  EXPECT_TRUE(code == 0 || code == 1);
  for (const int64_t step : CheckpointStore(tiny_.run() / "checkpoints", 1).list()) {
    const Checkpoint c = Checkpoint::open(tiny_.checkpoint(step));
    c.verify();
    for (const auto& e : c.file.entries()) {
      const auto bytes = c.file.data(e);
      for (size_t i = 0; i < bytes.size(); i += 4) {
        float x = 0;
        std::memcpy(&x, &bytes[i], 4);
        ASSERT_TRUE(std::isfinite(x)) << e.name;
      }
    }
  }
}

TEST_F(FaultTest, AMeasurementThatFailsDoesNotEndTheRun) {
  // The held-out loss of the first step overflows to infinity only where the text has the token; here it is NaN all
  // over, so training stops by itself in the next step and not in the measurement.
  for (int i = 0; i < 3; ++i) start({"train.max_hours=1e-9"});
  blow_up(3, 3e38F);
  const auto line =
      error_of(request({"log.eval_every=1", "log.sample_every=1", "log.prompts=[\"The\"]", "log.sample_tokens=3"}),
               ExitCode::failed);
  EXPECT_NE(line.find("step 4 is still not finite"), std::string::npos) << line;
}

// C5
TEST_F(FaultTest, TooLittleDiskIsRefusedBeforehandAndSurvivedWhenForced) {
  const ModelConfig model = [&] {
    RunConfig c = load_config(tiny_.config());
    c.resolve_vocab(Tokenizer::load(tiny_.tokenizer()).n_ordinary());
    return c.model;
  }();
  const int64_t one = checkpoint_bytes(model);
  const SmallDisk disk(elsewhere("disk"), 3 * one + one / 2);
  if (!disk.mounted()) GTEST_SKIP() << "a file system of its own needs root";
  TrainRequest r = request({"checkpoint.every=2", "train.steps=9"}, elsewhere("disk") / "run");
  const auto line = error_of(r, ExitCode::refused);
  EXPECT_NE(line.find(fmt::format("{} needed", 4 * one)), std::string::npos) << line;
  EXPECT_NE(line.find("bytes free"), std::string::npos) << line;
  EXPECT_FALSE(fs::exists(elsewhere("disk") / "run")) << "refused, and yet begun";

  r.force = true;
  const auto end = error_of(r, ExitCode::failed);
  EXPECT_NE(end.find("No space left"), std::string::npos) << end;
  const fs::path run = elsewhere("disk") / "run";
  const std::string text = log_of(run);
  for (const char* warned : {"no checkpoint at step 8", "training goes on, the next try is in 2 steps",
                             "there is room for 0 more", "are free"})
    EXPECT_NE(text.find(warned), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("the file needs {} bytes", one)), std::string::npos) << text;
  EXPECT_EQ(text.find("no checkpoint at step 6"), std::string::npos) << text;
  EXPECT_EQ(CheckpointStore(run / "checkpoints", 1).list(), (std::vector<int64_t>{2, 4, 6}));
  Checkpoint::open(TinyRun::checkpoint_of(run, 6)).verify();
  for (const auto& e : fs::directory_iterator(run / "checkpoints"))
    EXPECT_EQ(e.path().string().find(".tmp-"), std::string::npos) << e.path();
  // Keeping fewer, as the refusal advises, the same run ends well, as if nothing had been.
  r.force = false;
  r.overrides.emplace_back("checkpoint.keep_last=2");
  EXPECT_EQ(go(r).step, 9);
  start({"checkpoint.every=2", "train.steps=9"}, elsewhere("plain"));
  expect_same_state(TinyRun::checkpoint_of(elsewhere("plain"), 9), TinyRun::checkpoint_of(run, 9));
}

TEST_F(FaultTest, AFullDiskIsARefusalWithNumbers) {
  const SmallDisk disk(elsewhere("disk"), 64 << 10);
  if (!disk.mounted()) GTEST_SKIP() << "a file system of its own needs root";
  write_text(elsewhere("disk") / "filler", std::string(60'000, 'x'));
  const auto line = error_of(request({}, elsewhere("disk") / "run"), ExitCode::refused);
  EXPECT_NE(line.find("bytes free"), std::string::npos) << line;
}

TEST_F(FaultTest, AFolderThatCannotBeWrittenIsOneSentence) {
  write_text(elsewhere("file"), "a file");
  const auto before = snapshot(tiny_.folder());
  for (const fs::path& run : {elsewhere("file"), elsewhere("file") / "run"}) {
    const auto line = error_of(request({}, run), ExitCode::failed);
    EXPECT_NE(line.find(run.string()), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  EXPECT_EQ(snapshot(tiny_.folder()), before);
  const SmallDisk disk(elsewhere("disk"), 64 << 20, MS_RDONLY);
  if (!disk.mounted()) GTEST_SKIP() << "a file system of its own needs root";
  const auto line = error_of(request({}, elsewhere("disk") / "run"), ExitCode::refused);
  EXPECT_NE(line.find("Read-only file system"), std::string::npos) << line;
}

TEST_F(FaultTest, DataThatEndsEndsTheRunWithItsLastCheckpointIntact) {
  const auto line = error_of(request({"data.epochs=1", "train.steps=100000", "train.micro_batch=32",
                                      "train.global_batch_tokens=2048", "checkpoint.every=7"}),
                             ExitCode::failed);
  EXPECT_NE(line.find("the data ended after"), std::string::npos) << line;
  EXPECT_NE(line.find("data.epochs"), std::string::npos) << line;
  EXPECT_EQ(newest(tiny_.run()), static_cast<int64_t>(steps_in(tiny_.run() / "metrics.jsonl").size()))
      << "the last steps are lost";
  Checkpoint::open(tiny_.checkpoint(newest(tiny_.run()))).verify();
}

}  // namespace
}  // namespace mythos::testing
