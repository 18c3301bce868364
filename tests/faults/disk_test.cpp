// Disks that fill at chosen bytes, fail, or turn read-only while the program writes; and clocks that jump.
#include "faulty_run.h"

#include "base/random.h"

#include <cerrno>
#include <chrono>

namespace mythos::testing {
namespace {

#define NEEDS(disk) \
  if (!(disk).mounted()) GTEST_SKIP() << "a file system of its own needs root"

// Every class of place in what a run writes: the folder's own small files, the header of the first checkpoint, its
// tensors, its last page; the same of a later one while others are kept; and just enough.
TEST(FullDisk, AtChosenBytes) {
  const int64_t page = 4096;
  const int64_t one = (FaultyRun::checkpoint_size() + page - 1) / page * page;
  const std::vector<int64_t> sizes = {page,
                                      3 * page,
                                      16 * page,
                                      one / 2,
                                      one,
                                      one + 30 * page,
                                      2 * one - page,
                                      2 * one + 30 * page,
                                      3 * one + 10 * page,
                                      5 * one};
  Random random(derive_seed(22, 0, "sizes"));
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FaultyRun shelter;  // its folder holds the disk
    SmallDisk disk(shelter.folder() / "disk", sizes[i]);
    NEEDS(disk);
    const FaultyRun run({fmt::format("checkpoint.every={}", 1 + random.below(5)), "checkpoint.keep_last=2",
                         fmt::format("checkpoint.background={}", i % 2 == 0)},
                        shelter.folder() / "disk" / "run");
    SCOPED_TRACE(fmt::format("a disk of {} bytes, a checkpoint of {}", sizes[i], one));
    // Told beforehand where it cannot end well, and gone on with only when forced.
    const Ended refused = run.start();
    expect_clean_end(refused, {0, 1, 3});
    if (sizes[i] < 3 * one) {
      EXPECT_EQ(refused.code, 3) << refused.err;
    }
    const Ended ended = run.start({}, {"--force"});
    expect_clean_end(ended, {0, 1, 3});
    if (sizes[i] < one) {
      EXPECT_NE(ended.code, 0) << "exit 0 without the last state on disk";
    }
    const int64_t before = run.newest_whole();
    ASSERT_TRUE(disk.resize(64 << 20));
    EXPECT_EQ(run.newest_whole(), before);
    // What does not fit of metrics.jsonl is lost, and said.
    run.expect_ends_like_undisturbed(sizes[i] >= 3 * one);
  }
}

// A disk whose calls fail from some moment on, in each of the ways that disks do.
TEST(BrokenDisk, FromAnyCallOn) {
  Random random(derive_seed(23, 0, "calls"));
  for (const int error : {ENOSPC, EIO, EROFS, EDQUOT}) {
    for (const std::string once : {"", "+"}) {
      const FaultyRun run({"checkpoint.every=2", "checkpoint.keep_last=2",
                           fmt::format("checkpoint.background={}", random.below(2) == 1)});
      const Meets meets{.strike = fmt::format("{}{} any {}", error, once, 1 + random.below(500))};
      SCOPED_TRACE(meets.strike);
      const Ended ended = run.start(meets);
      expect_clean_end(ended, {0, 1, 3});
      EXPECT_TRUE(ended.struck);
      const int64_t newest = run.newest_whole();
      if (ended.code == 0) {
        EXPECT_EQ(newest, total_steps) << "exit 0 without the last state on disk";
      }
      run.expect_ends_like_undisturbed(false);
    }
  }
}

TEST(BrokenDisk, AWriteThatIsCutShort) {
  Random random(derive_seed(24, 0, "calls"));
  for (int i = 0; i < 3; ++i) {
    const FaultyRun run({"checkpoint.every=2"});
    const Ended ended = run.start({.strike = fmt::format("short write {}", 1 + random.below(400))});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(ended.struck);
    run.expect_ends_like_undisturbed();
  }
}

TEST(ReadOnly, WhileItRuns) {
  const FaultyRun shelter;
  const SmallDisk disk(shelter.folder() / "disk", 64 << 20);
  NEEDS(disk);
  SmallDisk kept(shelter.folder() / "disk" / "kept", 64 << 20);
  NEEDS(kept);
  const std::string dir = (shelter.folder() / "disk" / "kept" / "c").string();
  const FaultyRun run({"checkpoint.every=6", "checkpoint.dir=" + dir}, shelter.folder() / "disk" / "run");
  {
    const auto p = run.program();
    ASSERT_TRUE(p->wait_until([&] { return fs::exists(fs::path(dir) / "step_0000006.safetensors"); })) << p->err();
    ASSERT_TRUE(kept.read_only(true));
    EXPECT_EQ(p->wait(), 1) << p->err();
    EXPECT_NE(p->err().find("Read-only file system"), std::string::npos) << p->err();
  }
  const auto left = CheckpointStore(dir, 3).list();
  ASSERT_FALSE(left.empty());
  EXPECT_LT(left.back(), total_steps);
  const Ended refused = run.start();
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_EQ(CheckpointStore(dir, 3).list(), left);
  ASSERT_TRUE(kept.read_only(false));
  const Ended ended = run.start();
  ASSERT_EQ(ended.code, 0) << ended.err;
  expect_same_state(TinyRun::checkpoint_of(FaultyRun::undisturbed(), total_steps),
                    fs::path(dir) / "step_0000024.safetensors");
}

// To last year, to the next, to the beginning of time: nothing that matters reads the calendar.
TEST(Clock, Jumps) {
  Random random(derive_seed(25, 0, "readings"));
  for (const long off : {-86'400L, 86'400L * 365, -1'700'000'000L}) {
    const FaultyRun run({"checkpoint.every=3", "train.max_hours=1"});
    const Ended ended = run.start({.clock = fmt::format("{} {}", 3 + random.below(30), off)});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(ended.struck);
    run.expect_ends_like_undisturbed();
    const Json last = steps_in(run.run() / "metrics.jsonl").back();
    EXPECT_GE(last["tokens_per_s"].get<double>(), 1);
  }
  // In the middle of a run that is killed, and back again at its next start.
  const FaultyRun run({"checkpoint.every=1"});
  run.start({.clock = "5 31536000", .kill_after_ms = FaultyRun::milliseconds() / 2});
  run.expect_ends_like_undisturbed();
}

}  // namespace
}  // namespace mythos::testing
