// Checkpoints that are written while training goes on, elsewhere than before, on S3, on disks too small or too slow.
#include "../support/s3_environment.h"
#include "train_testing.h"

#include "checkpoint/layout.h"
#include "checkpoint/places.h"
#include "infer/checkpoint_io.h"
#include "train/inspect_run.h"
#include "train/saver.h"

#include <sys/mount.h>

#include <set>

namespace mythos::testing {
namespace {

using test::S3Server;
using Steps = std::vector<int64_t>;

size_t count(const std::string& text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

class StoreTest : public TrainTest {
 protected:
  const std::vector<std::string> one_step_ = {"train.max_hours=1e-9"};
  [[nodiscard]] std::string kept() const { return "checkpoint.dir=" + elsewhere("kept").string(); }
  [[nodiscard]] fs::path in_kept(int64_t step) const {
    return elsewhere("kept") / fmt::format("step_{:07}.safetensors", step);
  }
};

// The article's way: from one place to another in the middle.
TEST_F(StoreTest, AMovedCheckpointDirIsFoundAndSaid) {
  start({}, elsewhere("whole"));
  start({"train.max_hours=1e-9"});
  TrainResult r = start({kept(), "train.max_hours=1e-9"});
  EXPECT_EQ(r.step, 2);
  EXPECT_EQ(r.checkpoint, in_kept(2));
  std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find(fmt::format("checkpoint.dir was {} and is {} now: going on from {}",
                                  (tiny_.run() / "checkpoints").string(), elsewhere("kept").string(),
                                  tiny_.checkpoint(1).string())),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("note: since step 1: checkpoint.dir was"), std::string::npos) << text;
  EXPECT_EQ(CheckpointStore(tiny_.run() / "checkpoints", 3).list(), Steps{1}) << "the old place is left as it is";
  EXPECT_EQ(open_checkpoint(tiny_.run()).meta.step, 2);
  EXPECT_EQ(checkpoints_of(tiny_.run()), elsewhere("kept"));
  // And back, where an older one lies; a run's folder that was moved knows its own.
  fs::rename(tiny_.run(), elsewhere("moved"));
  r = start({"train.max_hours=1e-9"}, elsewhere("moved"));
  EXPECT_EQ(r.step, 3);
  EXPECT_EQ(r.checkpoint, TinyRun::checkpoint_of(elsewhere("moved"), 3));
  EXPECT_EQ(start({}, elsewhere("moved")).step, 24);
  expect_same_state(TinyRun::checkpoint_of(elsewhere("whole"), 24), TinyRun::checkpoint_of(elsewhere("moved"), 24));
  expect_metrics(elsewhere("moved"), 24, 24);
}

TEST_F(StoreTest, AMovedRunNeverBeginsAnewSilently) {
  start({kept(), "train.max_hours=1e-9"});
  // The old place is not mounted, or damaged, or the note of it is.
  fs::rename(elsewhere("kept"), elsewhere("unmounted"));
  auto line = error_of(request({"checkpoint.dir=" + elsewhere("new").string()}), ExitCode::failed);
  EXPECT_NE(line.find("holds no checkpoint, and those of before in"), std::string::npos) << line;
  EXPECT_NE(line.find("there is no such folder"), std::string::npos) << line;
  EXPECT_NE(line.find("--fresh"), std::string::npos) << line;
  fs::rename(elsewhere("unmounted"), elsewhere("kept"));
  fs::resize_file(in_kept(1), 1000);
  line = error_of(request({"checkpoint.dir=" + elsewhere("new").string()}), ExitCode::failed);
  EXPECT_NE(line.find("no checkpoint in"), std::string::npos) << line;
  EXPECT_FALSE(fs::exists(elsewhere("new")));
  // The run's configuration says it too.
  fs::remove(tiny_.run() / "checkpoint_places.json");
  line = error_of(request({"checkpoint.dir=" + elsewhere("new").string()}), ExitCode::failed);
  EXPECT_NE(line.find(elsewhere("kept").string()), std::string::npos) << line;
  // Asked to, it does begin anew.
  TrainRequest fresh = request({"checkpoint.dir=" + elsewhere("new").string(), "train.max_hours=1e-9"});
  fresh.fresh = true;
  EXPECT_EQ(go(fresh).step, 1);
}

TEST_F(StoreTest, PlacesAreReadAsTheyAreWritten) {
  const fs::path run = elsewhere("r");
  fs::create_directories(run);
  EXPECT_EQ(checkpoint_places(run), std::vector<std::string>{});
  remember_checkpoint_place(run, (run / "checkpoints").string());
  remember_checkpoint_place(run, "s3://bucket/x/");
  remember_checkpoint_place(run, elsewhere("kept").string());
  remember_checkpoint_place(run, "s3://bucket/x");
  EXPECT_EQ(checkpoint_places(run),
            (std::vector<std::string>{"s3://bucket/x", elsewhere("kept").string(), (run / "checkpoints").string()}));
  EXPECT_TRUE(same_place(run.string() + "/", elsewhere("r").string()));
  for (const char* bad : {"", "{", "[]", "{\"places\":[1]}", "{\"places\":{\"a\":1}}"}) {
    write_text(run / "checkpoint_places.json", bad);
    EXPECT_NO_THROW((void)checkpoint_places(run)) << bad;
  }
}

// Written from a copy while training changes the weights: the same bytes as those of a run that waits.
TEST_F(StoreTest, BackgroundSavesHoldTheStateOfTheirStep) {
  start({"checkpoint.every=4", "checkpoint.keep_last=10"}, elsewhere("waits"));
  start({"checkpoint.every=4", "checkpoint.keep_last=10", "checkpoint.background=true"});
  const auto there = CheckpointStore(tiny_.run() / "checkpoints", 3).list();
  EXPECT_EQ(there.front(), 4);
  EXPECT_EQ(there.back(), 24);
  for (const int64_t step : there) {
    expect_same_state(TinyRun::checkpoint_of(elsewhere("waits"), step), tiny_.checkpoint(step));
  }
  EXPECT_NE(log_of(tiny_.run()).find("copy to write checkpoints from"), std::string::npos);
}

// A full disk while saving in the background: no temporary stays, training goes on, and the end says it with exit 1.
TEST_F(StoreTest, AFullDiskInTheBackground) {
  start({"train.max_hours=1e-9", kept()});
  const auto one = static_cast<int64_t>(fs::file_size(in_kept(1)));
  fs::create_directories(elsewhere("disk"));
  if (::mount("tmpfs", elsewhere("disk").c_str(), "tmpfs", 0, fmt::format("size={}", one * 3 / 2).c_str()) != 0) {
    GTEST_SKIP() << "a file system of its own needs root";
  }
  const std::vector<std::string> o = {"checkpoint.dir=" + (elsewhere("disk") / "c").string(), "checkpoint.every=2",
                                      "checkpoint.background=true", "train.steps=12"};
  TrainRequest r = request(o, elsewhere("full"));
  r.force = true;
  const auto line = error_of(r, ExitCode::failed);
  EXPECT_NE(line.find("No space left"), std::string::npos) << line;
  for (const auto& e : fs::directory_iterator(elsewhere("disk") / "c")) {
    EXPECT_EQ(e.path().string().find(".tmp-"), std::string::npos) << e.path();
  }
  const CheckpointStore store(elsewhere("disk") / "c", 3);
  EXPECT_EQ(store.list().size(), 1U);
  EXPECT_TRUE(store.newest());
  // Room again: it goes on from there.
  ASSERT_EQ(::mount("tmpfs", elsewhere("disk").c_str(), "tmpfs", MS_REMOUNT, fmt::format("size={}", one * 9).c_str()),
            0);
  EXPECT_EQ(start(o, elsewhere("full")).step, 12);
  start({"train.steps=12"}, elsewhere("plain"));
  expect_same_state(TinyRun::checkpoint_of(elsewhere("plain"), 12), elsewhere("disk") / "c/step_0000012.safetensors");
  ::umount2(elsewhere("disk").c_str(), MNT_DETACH);
}

class S3Train : public StoreTest {
 protected:
  void SetUp() override {
    if (!S3Server::missing().empty()) GTEST_SKIP() << S3Server::missing();
    server_ = std::make_unique<S3Server>();
    server_->ask({{"do", "bucket"}, {"name", "runs"}});
    environment_ = std::make_unique<Environment>(s3_environment(*server_));
  }
  static std::vector<std::string> on_s3(std::vector<std::string> more = {}) {
    more.emplace_back("checkpoint.dir=s3://runs/tiny");
    return more;
  }
  static Steps there() { return CheckpointStore("s3://runs/tiny", 3).list(); }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<Environment> environment_;
};

TEST_F(S3Train, GoesOnAsOnADisk) {
  start({}, elsewhere("whole"));
  EXPECT_EQ(start(on_s3(one_step_)).step, 1);
  EXPECT_EQ(start(on_s3(one_step_)).step, 2);
  const TrainResult r = start(on_s3({"checkpoint.background=true"}));
  EXPECT_EQ(r.step, 24);
  EXPECT_EQ(r.checkpoint, "s3://runs/tiny/step_0000024.safetensors");
  const Checkpoint last = open_checkpoint(r.checkpoint);
  EXPECT_EQ(open_checkpoint(tiny_.run()).meta.step, 24);
  EXPECT_EQ(open_checkpoint("s3://runs/tiny").meta.step, 24);
  const Checkpoint whole = Checkpoint::open(TinyRun::checkpoint_of(elsewhere("whole"), 24));
  expect_same_state(whole, last);
  expect_metrics(tiny_.run(), 24, 24);
  // Looking on reads no tensors.
  server_->ask({{"do", "clear"}});
  const Json seen = inspect_run(tiny_.run(), false);
  EXPECT_EQ(seen["newest_verified"]["path"], "s3://runs/tiny/step_0000024.safetensors") << seen.dump();
  for (const Json& q : server_->ask({{"do", "requests"}})) {
    if (q["method"] != "GET" || q["path"].get<std::string>().find("step_") == std::string::npos) continue;
    const std::string range = q["range"];  // bytes=0-99
    EXPECT_LT(std::atoll(range.c_str() + range.find('-') + 1), checkpoint_bytes(last.meta.model) - 1) << range;
  }
  EXPECT_TRUE(start(on_s3()).finished);
  EXPECT_FALSE(fs::exists(tiny_.run() / "checkpoints"));
  EXPECT_FALSE(fs::exists("s3:")) << "it was taken for a path";
  // Anew: what is there is moved away, and the old run knows where.
  TrainRequest fresh = request(on_s3(one_step_));
  fresh.fresh = true;
  EXPECT_EQ(go(fresh).step, 1);
  EXPECT_EQ(there(), Steps{1});
  EXPECT_EQ(open_checkpoint(tiny_.run().string() + ".1").meta.step, 24);
}

// From the disk to S3 in the middle, as the article did.
TEST_F(S3Train, MovedFromTheDiskInTheMiddle) {
  start(one_step_);
  EXPECT_EQ(start(on_s3(one_step_)).step, 2);
  EXPECT_EQ(there(), Steps{2});
  EXPECT_NE(log_of(tiny_.run()).find("and is s3://runs/tiny now: going on from"), std::string::npos);
  EXPECT_EQ(start(one_step_).step, 3) << "and back";
}

// Killed while an upload is under way: what is there is whole, and the run goes on as if nothing had been.
TEST_F(S3Train, KilledInTheMiddleOfAnUpload) {
  start({"train.steps=12"}, elsewhere("whole"));
  for (const char* background : {"true", "false"}) {
    const fs::path run = elsewhere(std::string("run_") + background);
    const std::string dir = fmt::format("checkpoint.dir=s3://runs/{}", background);
    const std::vector<std::string> o = {"train.steps=12", "checkpoint.every=4", dir,
                                        std::string("checkpoint.background=") + background};
    // In the background only the first is certain not to be left out.
    const bool first = std::string_view(background) == "true";
    const std::string stalled = fmt::format("{}/step_000000{}", background, first ? 4 : 8);
    server_->ask({{"do", "fault"}, {"path", stalled}, {"method", "PUT"}, {"times", 1}, {"stall", true}});
    {
      const auto p = program(o, run);
      ASSERT_TRUE(p->wait_until([&] {
        for (const Json& r : server_->ask({{"do", "requests"}})) {
          if (r["path"].get<std::string>().find(stalled) != std::string::npos) return true;
        }
        return false;
      })) << p->err();
      p->signal(SIGKILL);
      EXPECT_EQ(p->wait(), 128 + SIGKILL);
    }
    EXPECT_EQ(CheckpointStore(std::string("s3://runs/") + background, 3).list(), first ? Steps{} : Steps{4});
    server_->ask({{"do", "clear"}});
    EXPECT_EQ(start(o, run).step, 12);
    expect_same_state(Checkpoint::open(TinyRun::checkpoint_of(elsewhere("whole"), 12)), open_checkpoint(run));
  }
}

// Slow: intervals are left out with one warning, never piled up; the last state is there all the same.
TEST_F(S3Train, ATargetThatIsTooSlow) {
  server_->ask({{"do", "fault"}, {"path", "step_"}, {"method", "PUT"}, {"times", 1000}, {"delay", 0.3}});
  const TrainResult r = start(on_s3({"checkpoint.every=1", "checkpoint.background=true"}));
  EXPECT_EQ(r.step, 24);
  EXPECT_EQ(there().back(), 24);
  const std::string text = log_of(tiny_.run());
  EXPECT_EQ(count(text, "is still being written after"), 1U) << text;
  EXPECT_NE(text.find("try checkpoint.every = 2 or more"), std::string::npos) << text;
  size_t puts = 0;
  for (const Json& q : server_->ask({{"do", "requests"}})) {
    puts += q["method"] == "PUT" && q["path"].get<std::string>().find("step_") != std::string::npos;
  }
  EXPECT_LT(puts, 24U);
}

TEST_F(S3Train, AServerThatRefusesForAWhile) {
  server_->ask({{"do", "fault"}, {"path", "step_0000006"}, {"times", 1000}, {"status", 403}, {"code", "AccessDenied"}});
  EXPECT_EQ(start(on_s3({"checkpoint.background=true"})).step, 24);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("no checkpoint at step 6: cannot write s3://runs/tiny/step_0000006.safetensors: access denied"),
            std::string::npos)
      << text;
  // And for good, at the end: exit 1, with the earlier ones in place.
  server_->ask({{"do", "fault"}, {"path", "step_0000030"}, {"times", 1000}, {"status", 403}, {"code", "AccessDenied"}});
  TrainRequest more = request(on_s3());
  more.steps = 30;
  more.force = true;
  EXPECT_NE(error_of(more, ExitCode::failed).find("access denied"), std::string::npos);
  EXPECT_EQ(there().back(), 24);
}

TEST_F(S3Train, ABucketThatIsNotThereIsFoundBeforeTheFirstStep) {
  EXPECT_NE(error_of(request({"checkpoint.dir=s3://nowhere/x"}), ExitCode::usage).find("there is no such bucket"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(tiny_.run()));
  for (const char* bad : {"checkpoint.dir=s3://", "checkpoint.dir=gs://bucket/x", "checkpoint.dir=s3:///x"}) {
    EXPECT_NE(error_of(request({bad}), ExitCode::usage).find("no place for checkpoints"), std::string::npos) << bad;
  }
}

// The article's change of micro_batch, with its own arithmetic at 1/128 of its size: 2 rows and 128 micro-batches of
// 524,288 / 128 tokens a step, 5,722 steps; then 3 rows, 85 micro-batches, 522,240 / 128, 5,744 steps.
TEST_F(StoreTest, R1TheArticlesChangeOfMicroBatch) {
  const std::vector<std::string> both = {"train.steps=0",        "train.target_tokens=23437500",
                                         "train.warmup_steps=2", "train.global_batch_tokens=4096",
                                         "train.max_hours=1e-9", "train.loops=1"};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(start(both).steps, 5722);
  auto changed = both;
  changed.emplace_back("train.micro_batch=3");
  TrainResult r;
  for (int i = 0; i < 2; ++i) r = start(changed);
  EXPECT_EQ(r.steps, 5744);
  EXPECT_EQ(r.step, 5);
  EXPECT_EQ(r.tokens, 3 * 4096 + 2 * 4080);
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 5U);
  for (int64_t i = 0; i < 5; ++i) {
    const double total = i < 3 ? 5722 : 5744;
    const double s = static_cast<double>(i);
    const double lr =
        i < 2 ? 3e-3 * s / 2 : 3e-4 + (3e-3 - 3e-4) * 0.5 * (1 + std::cos(std::numbers::pi * (s - 2) / (total - 2)));
    EXPECT_NEAR(lines[static_cast<size_t>(i)]["lr"].get<double>(), lr, 1e-15) << i;
  }
  EXPECT_EQ(lines[4]["tokens"], r.tokens);
  EXPECT_EQ(Checkpoint::open(tiny_.checkpoint(5)).meta.data["rows"], 3 * 256 + 2 * 255);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("note: train.micro_batch was 2, now 3: steps and learning rate follow"), std::string::npos)
      << text;
  EXPECT_NE(text.find("(5722 steps)"), std::string::npos) << text;
  EXPECT_NE(text.find("(5744 steps)"), std::string::npos) << text;
}

// What a run that goes on says is what the undisturbed run did.
TEST_F(StoreTest, GoingOnSaysTheNextBatchTheNormsAndTheRate) {
  start({}, elsewhere("whole"));
  const auto whole = steps_in(elsewhere("whole") / "metrics.jsonl");
  std::set<std::string> batches;
  for (const Json& line : whole) batches.insert(line["batch"].get<std::string>());
  EXPECT_EQ(batches.size(), 24U);
  for (int i = 0; i < 3; ++i) start({"train.max_hours=1e-9"});
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find(fmt::format("the next batch is {} (4 rows)", whole[2]["batch"].get<std::string>())),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(fmt::format("next lr {:.2e}", closed_form(2, 24))), std::string::npos) << text;
  double sum = 0;
  const Checkpoint c = Checkpoint::open(tiny_.checkpoint(2));
  for (const auto& e : c.file.entries()) {
    if (!e.name.starts_with("model.") || e.name.ends_with("router_bias")) continue;
    const auto bytes = c.file.data(e);
    for (size_t i = 0; i < bytes.size(); i += 4) {
      float x = 0;
      std::memcpy(&x, &bytes[i], 4);
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  EXPECT_NE(text.find(fmt::format("norms: weights {:.6g}, first moments", std::sqrt(sum))), std::string::npos) << text;
  const auto parts = steps_in(tiny_.run() / "metrics.jsonl");
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(parts[i]["batch"], whole[i]["batch"]);
}

// R1: stopped in the middle and at the end of warm-up, in the decay, and before the last step.
TEST_F(StoreTest, R1TheLearningRateIsTheSchedulesWhereverTheRunStopped) {
  const std::vector<std::string> o = {"train.schedule=linear", "checkpoint.every=1", "checkpoint.keep_last=100"};
  start(o);
  for (const int64_t stop : {23, 11, 4, 2}) {
    for (int64_t step = stop + 1; step <= 24; ++step) fs::remove(tiny_.checkpoint(step));
    EXPECT_EQ(start(o).step, 24);
    const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
    ASSERT_EQ(lines.size(), 24U);
    for (int64_t i = 0; i < 24; ++i) {
      const double done = static_cast<double>(i - 4) / 20;
      const double expected = i < 4 ? 3e-3 * static_cast<double>(i) / 4 : 3e-3 + (3e-4 - 3e-3) * done;
      EXPECT_NEAR(lines[static_cast<size_t>(i)]["lr"].get<double>(), expected, 1e-12 * 3e-3) << stop << " " << i;
    }
  }
}

}  // namespace
}  // namespace mythos::testing
