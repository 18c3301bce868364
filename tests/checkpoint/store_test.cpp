#include "checkpoint/store.h"

#include "support.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace mythos {
namespace {
using namespace mythos::testing;
using Steps = std::vector<int64_t>;

// Root may do everything, so tests of permissions give that up for a while; the folder becomes theirs.
class Unprivileged {
 public:
  explicit Unprivileged(const fs::path& folder) : root_(::geteuid() == 0) {
    constexpr uid_t nobody = 65534;
    if (root_ && (::chown(folder.c_str(), nobody, static_cast<gid_t>(-1)) != 0 || ::seteuid(nobody) != 0)) {
      ADD_FAILURE() << "cannot give up root";
    }
  }
  ~Unprivileged() {
    if (root_ && ::seteuid(0) != 0) ADD_FAILURE() << "cannot become root again";
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  bool root_;
};

TEST_F(CheckpointTest, NamesSortByStep) {
  EXPECT_EQ(checkpoint_name(600), "step_0000600.safetensors");
  EXPECT_EQ(checkpoint_name(12'345'678), "step_12345678.safetensors");
  const CheckpointStore store(dir_, 3);
  EXPECT_EQ(store.list(), Steps{});
  store.prepare();
  for (const char* name :
       {"step_0000010.safetensors", "step_12345678.safetensors", "step_9999999.safetensors",
        // not ours: other digits, signs, suffixes, folders
        "step_10.safetensors", "step_-000001.safetensors", "step_0000020.safetensors.damaged", "step_.safetensors",
        "step_000000x.safetensors", "step_0000030.safetensors~", "step_99999999999999999999.safetensors"}) {
    std::ofstream(dir_ / name) << "x";
  }
  fs::create_directory(dir_ / checkpoint_name(40));
  EXPECT_EQ(store.list(), (Steps{10, 9'999'999, 12'345'678}));
}

TEST_F(CheckpointTest, AnEmptyFolderIsAFreshStart) {
  const CheckpointStore store(dir_, 3);
  EXPECT_EQ(store.newest(), std::nullopt);  // not even the folder
  store.prepare();
  EXPECT_EQ(store.newest(), std::nullopt);
  EXPECT_EQ(names(), std::vector<std::string>{});
  EXPECT_THROW(CheckpointStore(dir_, 0), Error);
  // A file in the folder's place is not a fresh start.
  std::ofstream(root_ / "file") << "x";
  EXPECT_THROW((void)CheckpointStore(root_ / "file", 3).newest(), Error);
  EXPECT_THROW(CheckpointStore(root_ / "file", 3).prepare(), Error);
}

TEST_F(CheckpointTest, KeepsTheNewestAndTheMilestones) {
  CheckpointStore store(dir_, 2, 40);
  store.prepare();
  for (int64_t step = 10; step <= 100; step += 10) {
    const fs::path path = store.save(small_meta(step), Numbers(static_cast<uint64_t>(step)).tensors);
    EXPECT_TRUE(fs::exists(path));
    EXPECT_EQ(path, store.path_of(step));
    EXPECT_TRUE(holds(*store.newest(), Numbers(static_cast<uint64_t>(step))));
  }
  EXPECT_EQ(store.list(), (Steps{40, 80, 90, 100}));
  // As many at once as foreseen: the four and the one being written would be 40, 80, 90, 100, 110.
  EXPECT_EQ(checkpoints_at_once(2, 40, 10, 110), 5);
}

TEST_F(CheckpointTest, HowManyAtOnce) {
  EXPECT_EQ(checkpoints_at_once(3, 0, 200, 5744), 4);
  EXPECT_EQ(checkpoints_at_once(3, 0, 200, 500), 3);
  EXPECT_EQ(checkpoints_at_once(3, 0, 200, 100), 1);
  EXPECT_EQ(checkpoints_at_once(3, 0, 200, 0), 0);
  // Counted by doing it.
  for (const int64_t keep_last : {1, 2, 5}) {
    for (const int64_t keep_every : {0, 3, 4, 10}) {
      for (const int64_t every : {1, 2, 6}) {
        for (int64_t steps = 1; steps < 60; ++steps) {
          std::vector<int64_t> there;
          size_t most = 0;
          for (int64_t step = 1; step <= steps; ++step) {
            if (step % every != 0 && step != steps) continue;
            there.push_back(step);
            most = std::max(most, there.size());
            const size_t old =
                there.size() - std::min(there.size(), static_cast<size_t>(std::max<int64_t>(keep_last, 2)));
            const auto end = there.begin() + static_cast<int64_t>(old);
            there.erase(
                std::remove_if(there.begin(), end, [&](int64_t s) { return keep_every == 0 || s % keep_every != 0; }),
                end);
          }
          ASSERT_EQ(checkpoints_at_once(keep_last, keep_every, every, steps), static_cast<int64_t>(most))
              << keep_last << " " << keep_every << " " << every << " " << steps;
        }
      }
    }
  }
}

// The newest file is not the newest checkpoint if its save never finished.
TEST_F(CheckpointTest, C2ResumesTheNewestGoodOne) {
  CheckpointStore store(dir_, 5);
  store.prepare();
  for (const int64_t step : {10, 20, 30, 40}) {
    store.save(small_meta(step), Numbers(static_cast<uint64_t>(step)).tensors);
  }
  fs::resize_file(store.path_of(20), fs::file_size(store.path_of(20)) / 2);
  fs::resize_file(store.path_of(30), 0);
  flip_bit(store.path_of(40), fs::file_size(store.path_of(40)) - 7, 2);
  const std::string damaged = read_file(store.path_of(40));

  // A reader changes nothing.
  EXPECT_TRUE(holds(*store.newest(CheckpointStore::Damaged::leave), Numbers(10)));
  EXPECT_EQ(store.list(), (Steps{10, 20, 30, 40}));

  const auto newest = store.newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->meta.step, 10);
  EXPECT_TRUE(holds(*newest, Numbers(10)));
  EXPECT_EQ(store.list(), Steps{10});
  EXPECT_EQ(read_file(dir_ / "step_0000040.safetensors.damaged"), damaged);
  for (const char* text :
       {"step_0000020.safetensors is not a usable", "it has 0 bytes", "step_0000040.safetensors is damaged: tensor",
        "is now step_0000040.safetensors.damaged", "going on from", "step_0000010"}) {
    EXPECT_NE(logged().find(text), std::string::npos) << text;
  }
  // Set aside again, never over what is there.
  store.save(small_meta(40), Numbers(41).tensors);
  flip_bit(store.path_of(40), fs::file_size(store.path_of(40)) - 1, 0);
  EXPECT_EQ(store.newest()->meta.step, 10);
  EXPECT_EQ(read_file(dir_ / "step_0000040.safetensors.damaged"), damaged);
  EXPECT_TRUE(fs::exists(dir_ / "step_0000040.safetensors.damaged.2"));
}

TEST_F(CheckpointTest, C2NoneGoodIsAnErrorAndNotAFreshStart) {
  CheckpointStore store(dir_, 5);
  store.prepare();
  for (const int64_t step : {10, 20}) store.save(small_meta(step), Numbers(1).tensors);
  for (const int64_t step : {10, 20}) fs::resize_file(store.path_of(step), 1000);
  for (int time = 0; time < 2; ++time) {
    const std::string line = error_line([&] { (void)store.newest(); });
    EXPECT_NE(line.find("no checkpoint in"), std::string::npos) << line;
    EXPECT_NE(line.find("step_0000020"), std::string::npos) << line;
    EXPECT_NE(line.find("--fresh"), std::string::npos) << line;
    EXPECT_EQ(store.list(), (Steps{10, 20}));
  }
  // Nor when all that is left was set aside before.
  fs::remove(store.path_of(10));
  fs::rename(store.path_of(20), dir_ / "step_0000020.safetensors.damaged");
  EXPECT_NE(error_line([&] { (void)store.newest(); }).find("no checkpoint in"), std::string::npos);
}

TEST_F(CheckpointTest, WeightsAloneAreNotResumed) {
  CheckpointStore store(dir_, 5);
  store.prepare();
  store.save(small_meta(10), Numbers(1).tensors);
  write_weights_only(Checkpoint::open(store.path_of(10)), store.path_of(20));
  EXPECT_EQ(store.newest()->meta.step, 10);
}

// What cannot be read is no damage: it is neither passed over nor set aside.
TEST_F(CheckpointTest, AFileThatMayNotBeReadStopsTheSearch) {
  const Unprivileged unprivileged(root_);
  CheckpointStore store(dir_, 5);
  store.prepare();
  for (const int64_t step : {10, 20}) store.save(small_meta(step), Numbers(1).tensors);
  fs::permissions(store.path_of(20), fs::perms::none);
  const std::string line = error_line([&] { (void)store.newest(); });
  EXPECT_NE(line.find("Permission denied"), std::string::npos) << line;
  EXPECT_EQ(store.list(), (Steps{10, 20}));
  EXPECT_NO_THROW(store.prune());
  EXPECT_EQ(store.list(), (Steps{10, 20}));
}

TEST_F(CheckpointTest, PruningCountsOnlyGoodOnes) {
  CheckpointStore store(dir_, 2);
  store.prepare();
  for (const int64_t step : {10, 20, 30}) store.save(small_meta(step), Numbers(1).tensors);
  ASSERT_EQ(store.list(), (Steps{20, 30}));
  fs::resize_file(store.path_of(30), 5000);
  store.save(small_meta(40), Numbers(1).tensors);
  EXPECT_EQ(store.list(), (Steps{20, 40}));
  EXPECT_TRUE(fs::exists(dir_ / "step_0000030.safetensors.damaged"));

  // After going back to an earlier step, the one saved last stays although newer ones are there.
  CheckpointStore later(dir_, 1);
  later.save(small_meta(15), Numbers(1).tensors);
  EXPECT_EQ(later.list(), (Steps{15, 20, 40}));
  later.set_aside_newer(15);
  EXPECT_EQ(later.list(), Steps{15});
  EXPECT_EQ(later.newest()->meta.step, 15);
  EXPECT_TRUE(fs::exists(dir_ / "step_0000040.safetensors.set_aside"));
}

TEST_F(CheckpointTest, PruningThatFailsIsAWarning) {
  const Unprivileged unprivileged(root_);
  CheckpointStore store(dir_, 3);
  store.prepare();
  for (const int64_t step : {10, 20, 30}) store.save(small_meta(step), Numbers(1).tensors);
  fs::permissions(dir_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_NO_THROW(CheckpointStore(dir_, 1).prune());
  fs::permissions(dir_, fs::perms::owner_all);
  EXPECT_EQ(store.list(), (Steps{10, 20, 30}));
  EXPECT_NE(logged().find("the old checkpoint stays: cannot remove"), std::string::npos);
}

// A file counts as good when all of it was read, not by its header alone: with a flipped bit in the one before the
// newest, an older one takes its place, and never fewer than two stay.
TEST_F(CheckpointTest, PruningReadsWhatItCounts) {
  CheckpointStore store(dir_, 5);
  store.prepare();
  for (const int64_t step : {10, 20, 30, 40}) store.save(small_meta(step), Numbers(1).tensors);
  flip_bit(store.path_of(30), fs::file_size(store.path_of(30)) - 9, 1);
  CheckpointStore fewer(dir_, 1);
  fewer.prune();
  EXPECT_EQ(fewer.list(), (Steps{20, 40}));
  EXPECT_TRUE(fs::exists(dir_ / "step_0000030.safetensors.damaged"));
  fewer.save(small_meta(50), Numbers(1).tensors);
  EXPECT_EQ(fewer.list(), (Steps{40, 50}));
  // What is damaged later is found again.
  flip_bit(store.path_of(40), fs::file_size(store.path_of(40)) - 9, 1);
  fewer.save(small_meta(60), Numbers(1).tensors);
  fewer.save(small_meta(70), Numbers(1).tensors);
  EXPECT_EQ(fewer.list(), (Steps{60, 70}));
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsRefusedAtTheStart) {
  const Unprivileged unprivileged(root_);
  fs::create_directory(dir_);
  fs::permissions(dir_, fs::perms::owner_read | fs::perms::owner_exec);
  const std::string line = error_line([&] { CheckpointStore(dir_, 1).prepare(); });
  fs::permissions(dir_, fs::perms::owner_all);
  EXPECT_NE(line.find("cannot write"), std::string::npos) << line;
}

TEST_F(CheckpointTest, PrepareClearsWhatKilledProcessesLeft) {
  CheckpointStore store(dir_, 3);
  store.prepare();
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(store.path_of(10));
    file.write("half a checkpoint");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(names().size(), 1U);
  store.prepare();
  EXPECT_EQ(names(), std::vector<std::string>{});
}

// Killed at random instants in a loop of saves: what is there afterwards is always a whole checkpoint, and never an
// older one than the last whose save had returned.
TEST_F(CheckpointTest, C1KilledAtAnyInstant) {
  CheckpointStore store(dir_, 2);
  store.prepare();
  int64_t last = 0;
  Random random(derive_seed(3, 0, "kill"));
  ModelConfig model = small_model();
  model.vocab_size = 4000;  // so that writing takes part of the time
  std::vector<Numbers> numbers;
  for (uint64_t i = 0; i < 3; ++i) numbers.emplace_back(i, model);
  for (int round = 0; round < 40; ++round) {
    int done[2];
    ASSERT_EQ(::pipe(done), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        CheckpointMeta meta = small_meta(step);
        meta.model = model;
        store.save(meta, numbers[static_cast<size_t>(step) % 3].tensors);
        (void)!::write(done[1], &step, sizeof(step));
      }
    }
    ::close(done[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random.below(40'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    int64_t returned = last;
    while (::read(done[0], &returned, sizeof(returned)) == sizeof(returned)) continue;
    ::close(done[0]);

    store.prepare();
    const auto newest = store.newest();
    if (returned == 0 && !newest) continue;
    ASSERT_TRUE(newest);
    ASSERT_GE(newest->meta.step, returned);
    ASSERT_TRUE(holds(*newest, numbers[static_cast<size_t>(newest->meta.step) % 3]));
    store.prune();
    ASSERT_LE(names().size(), 2U);
    last = newest->meta.step;
  }
  EXPECT_GT(last, 0);
  EXPECT_EQ(logged().find("damaged"), std::string::npos);
}

TEST_F(CheckpointTest, C5RefusedBeforehandForWantOfRoom) {
  const CheckpointStore store(dir_, 3);
  EXPECT_NO_THROW(store.require_room(1'000'000, 10, 100));
  const std::string line = error_line([&] { store.require_room(int64_t{1} << 60, 10, 100); });
  EXPECT_NE(line.find("4.61 EB"), std::string::npos) << line;
  EXPECT_NE(line.find("checkpoint.keep_last"), std::string::npos) << line;
  try {
    store.require_room(int64_t{1} << 60, 10, 100);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::refused);
  }
}

// A small file system of its own, where the test may mount one.
TEST_F(CheckpointTest, C5FullDisk) {
  fs::create_directory(dir_);
  const int64_t one = checkpoint_bytes(small_model());
  if (::mount("tmpfs", dir_.c_str(), "tmpfs", 0, fmt::format("size={}", one * 7 / 2).c_str()) != 0) {
    GTEST_SKIP() << "may not mount a file system";
  }
  {
    CheckpointStore store(dir_, 3);
    store.prepare();
    const std::string refused = error_line([&] { store.require_room(one, 10, 100); });
    EXPECT_NE(refused.find(fmt::format("{} needed", 4 * one)), std::string::npos) << refused;
    for (const int64_t step : {5, 10, 20}) {
      store.save(small_meta(step), Numbers(static_cast<uint64_t>(step)).tensors);
    }
    const auto files = names();
    const std::string line = error_line([&] { store.save(small_meta(30), Numbers(30).tensors); });
    EXPECT_NE(line.find(fmt::format("the file needs {} bytes and ", one)), std::string::npos) << line;
    EXPECT_NE(line.find("No space left"), std::string::npos) << line;
    EXPECT_EQ(names(), files);
    EXPECT_TRUE(holds(*store.newest(), Numbers(20)));
    // Keeping fewer, what is there leaves room again.
    CheckpointStore fewer(dir_, 2);
    fewer.prune();
    EXPECT_NO_THROW(fewer.save(small_meta(30), Numbers(30).tensors));
    EXPECT_EQ(fewer.list(), (Steps{20, 30}));
  }
  EXPECT_EQ(::umount2(dir_.c_str(), MNT_DETACH), 0);
}

TEST_F(CheckpointTest, C5FileSizeLimit) {
  CheckpointStore store(dir_, 3);
  store.prepare();
  store.save(small_meta(10), Numbers(10).tensors);
  const auto files = names();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{200'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string line = error_line([&] { store.save(small_meta(20), Numbers(20).tensors); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_NE(line.find("File too large"), std::string::npos) << line;
  EXPECT_NE(line.find("the file needs"), std::string::npos) << line;
  EXPECT_EQ(names(), files);
  EXPECT_TRUE(holds(*store.newest(), Numbers(10)));
}

TEST_F(CheckpointTest, C6TheLastGoodOneOutlivesBadNumbers) {
  CheckpointStore store(dir_, 1);
  store.prepare();
  store.save(small_meta(10), Numbers(10).tensors);
  Numbers bad(20);
  bad.values[3][0] = std::numeric_limits<float>::infinity();
  for (int64_t step = 20; step < 60; step += 10) EXPECT_THROW(store.save(small_meta(step), bad.tensors), Error);
  EXPECT_EQ(store.list(), Steps{10});
  EXPECT_TRUE(holds(*store.newest(), Numbers(10)));
}

// One bit of the newest flipped anywhere: the one before is used.
TEST_F(CheckpointTest, AFlippedBitMeansTheOneBefore) {
  CheckpointStore store(dir_, 2);
  store.prepare();
  store.save(small_meta(10), Numbers(10).tensors);
  store.save(small_meta(20), Numbers(20).tensors);
  Random random(derive_seed(4, 0, "bit flips"));
  for (int i = 0; i < 40; ++i) {
    const uint64_t at = random.below(fs::file_size(store.path_of(20)));
    flip_bit(store.path_of(20), at, 5);
    EXPECT_TRUE(holds(*store.newest(CheckpointStore::Damaged::leave), Numbers(10))) << at;
    flip_bit(store.path_of(20), at, 5);
  }
  EXPECT_TRUE(holds(*store.newest(), Numbers(20)));
}

}  // namespace
}  // namespace mythos
