// Every system call a save makes, failing or being the last thing the process does. This program defines write, fsync,
// rename and fallocate itself, so the library's calls come here.
#include "checkpoint/store.h"
#include "support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

namespace {

enum class Fault { none, error, short_write, die };

// What happens to the call number `at` (from 1) once armed; calls are counted from there on.
struct Plan {
  bool armed = false;
  Fault fault = Fault::none;
  int at = 0;
  int error = 0;
  int calls = 0;
  std::string trace;
} plan;

// A file system that cannot rename, or copies instead (as mounts of object stores do).
struct Renaming {
  int error = 0;
  bool copies = false;
} renaming;

int copy_instead(const char* from, const char* to) {
  std::ifstream in(from, std::ios::binary);
  std::ofstream out(to, std::ios::binary | std::ios::trunc);
  out << in.rdbuf();
  out.close();
  // The file keeps its place, as no file that is renamed over another does.
  return out.good() ? ::unlink(from) : -1;
}

// Whether the call is to fail; dies here if it is to be the last.
bool strikes(char kind) {
  if (!plan.armed) return false;
  plan.trace += kind;
  if (++plan.calls != plan.at) return false;
  if (plan.fault == Fault::die) ::_exit(9);
  errno = plan.error;
  return plan.fault == Fault::error;
}

bool is_folder(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
}

}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  // The log's lines are not part of a save.
  if (fd > 2 && (::fcntl(fd, F_GETFL) & O_APPEND) == 0) {
    if (strikes('w')) return -1;
    if (plan.armed && plan.calls == plan.at && plan.fault == Fault::short_write) size = (size + 1) / 2;
  }
  const iovec part{const_cast<void*>(data), size};
  return ::writev(fd, &part, 1);
}
int fsync(int fd) { return strikes(is_folder(fd) ? 'd' : 's') ? -1 : 0; }
int rename(const char* from, const char* to) {
  if (strikes('r')) return -1;
  errno = renaming.error;
  if (renaming.error != 0) return -1;
  return renaming.copies ? copy_instead(from, to) : ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int fallocate(int, int, off_t, off_t) {
  if (strikes('a')) return -1;
  errno = EOPNOTSUPP;
  return -1;
}
}

namespace mythos {
namespace {
using namespace mythos::testing;

// Few tensors, so that every call of a save can have its turn.
CheckpointMeta few_meta(int64_t step) {
  CheckpointMeta meta = small_meta(step);
  meta.model.prelude_layers = 0;
  meta.model.n_experts = 1;
  meta.model.n_shared_experts = 0;
  meta.model.attn_type = AttentionType::gqa;
  return meta;
}

class FaultTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    CheckpointStore store(dir_, 2);
    store.prepare();
    store.save(few_meta(10), old_.tensors);
  }
  void TearDown() override {
    plan = {};
    renaming = {};
    CheckpointTest::TearDown();
  }

  // Saves step 20 with a fault; the error, or "" if it went well.
  std::string save(Fault fault, int at, int error) {
    CheckpointStore store(dir_, 2);
    plan = {true, fault, at, error, 0, ""};
    std::string line;
    try {
      store.save(few_meta(20), new_.tensors);
    } catch (const Error& e) {
      line = e.line();
    }
    plan.armed = false;
    return line;
  }

  // What a run finds when it starts again: 10 or 20, whole, with nothing else lying about.
  int64_t found() {
    CheckpointStore store(dir_, 2);
    store.prepare();
    const auto newest = store.newest();
    if (!newest) return -1;
    EXPECT_TRUE(holds(*newest, newest->meta.step == 10 ? old_ : new_));
    EXPECT_EQ(names().size(), store.list().size());
    return newest->meta.step;
  }

  Numbers old_{10, few_meta(0).model};
  Numbers new_{20, few_meta(0).model};
};

TEST_F(FaultTest, TheOrderOfASave) {
  EXPECT_EQ(save(Fault::none, 0, 0), "");
  // Space, header and tensors, synced, then renamed, then the folder synced.
  const std::string writes(1 + new_.tensors.size(), 'w');
  EXPECT_EQ(plan.trace, "a" + writes + "srd");
  EXPECT_EQ(found(), 20);
}

TEST_F(FaultTest, C1EveryCallFails) {
  save(Fault::none, 0, 0);
  const int calls = plan.calls;
  ASSERT_GT(calls, 50);
  for (int at = 1; at <= calls; ++at) {
    fs::remove(dir_ / checkpoint_name(20));
    const std::string line = save(Fault::error, at, at % 2 == 0 ? ENOSPC : EIO);
    EXPECT_NE(line.find("step_0000020.safetensors"), std::string::npos) << at << line;
    // The temporary file is gone at once, without a new start.
    for (const std::string& name : names()) EXPECT_TRUE(name.starts_with("step_")) << name;
    EXPECT_EQ(found(), at == calls ? 20 : 10) << at;
  }
}

TEST_F(FaultTest, C1EveryCallIsTheLast) {
  save(Fault::none, 0, 0);
  const int calls = plan.calls;
  for (int at = 1; at <= calls; ++at) {
    fs::remove(dir_ / checkpoint_name(20));
    const pid_t child = ::fork();
    if (child == 0) {
      save(Fault::die, at, 0);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << at;
    EXPECT_EQ(found(), at == calls ? 20 : 10) << at;
  }
}

TEST_F(FaultTest, WritesMayBeShort) {
  save(Fault::none, 0, 0);
  const int calls = plan.calls;
  for (int at = 2; at < calls - 2; at += 7) {
    fs::remove(dir_ / checkpoint_name(20));
    EXPECT_EQ(save(Fault::short_write, at, 0), "") << at;
    EXPECT_EQ(found(), 20);
  }
}

// Saving over the same step: the old file stays until the new one is whole.
TEST_F(FaultTest, ReplacingTheSameStep) {
  save(Fault::none, 0, 0);
  const int calls = plan.calls;
  const Numbers other(21, few_meta(0).model);
  for (int at = 1; at < calls; at += 5) {
    CheckpointStore store(dir_, 2);
    plan = {true, Fault::error, at, EIO, 0, ""};
    EXPECT_THROW(store.save(few_meta(20), other.tensors), Error);
    plan.armed = false;
    EXPECT_EQ(found(), 20);
  }
}

// Where files cannot be renamed, as on some mounts of object stores, that shows before the first step.
TEST_F(FaultTest, C4NoRenameShowsAtTheStart) {
  for (const int error : {ENOSYS, EOPNOTSUPP, EXDEV, EPERM, 0}) {
    const fs::path folder = root_ / fmt::format("mounted_{}", error);
    renaming = {error, error == 0};
    CheckpointStore store(folder, 2);
    store.prepare();
    EXPECT_TRUE(fs::exists(folder / ".marks_whole_files")) << error;
    EXPECT_NE(logged().find(error == 0 ? "renaming makes a copy" : std::strerror(error)), std::string::npos) << error;
    for (const int64_t step : {10, 20, 30, 40}) {
      store.save(few_meta(step), (step % 20 == 0 ? new_ : old_).tensors);
      EXPECT_TRUE(fs::exists(store.path_of(step).string() + ".complete"));
    }
    EXPECT_EQ(store.list(), (std::vector<int64_t>{30, 40}));
    EXPECT_TRUE(holds(*store.newest(), new_));
    store.prepare();
    size_t files = 0;
    for (const auto& e : fs::directory_iterator(folder)) files += e.is_regular_file();
    EXPECT_EQ(files, 5U) << "two, their marks, and the mode: nothing else lies about";

    // Damaged ones and those gone back from do not count any more, without being renamed.
    flip_bit(store.path_of(40), 70'000, 1);
    EXPECT_TRUE(holds(*store.newest(), old_));
    EXPECT_EQ(store.list(), std::vector<int64_t>{30});
    store.set_aside_newer(20);
    EXPECT_EQ(store.list(), std::vector<int64_t>{});
    EXPECT_NE(error_line([&] { (void)store.newest(); }).find("no checkpoint in"), std::string::npos);
    store.save(few_meta(40), old_.tensors);
    EXPECT_EQ(store.list(), std::vector<int64_t>{40});
    EXPECT_TRUE(holds(*store.newest(), old_));
  }
  // A folder that cannot be synced is no reason to stop.
  renaming = {};
  CheckpointStore store(dir_, 2);
  plan = {true, Fault::error, 9, EINVAL, 0, ""};
  EXPECT_NO_THROW(store.prepare());
  EXPECT_EQ(plan.trace, "wswsrwsrd");
}

class MarkTest : public FaultTest {
 protected:
  void SetUp() override {
    FaultTest::SetUp();
    fs::remove_all(dir_);
    renaming.error = ENOSYS;
    CheckpointStore store(dir_, 2);
    store.prepare();
    store.save(few_meta(10), old_.tensors);
  }
};

// Every call of a save that ends with a mark, failing or being the last.
TEST_F(MarkTest, C1EveryCallFailsOrIsTheLast) {
  EXPECT_EQ(save(Fault::none, 0, 0), "");
  const int calls = plan.calls;
  ASSERT_GT(calls, 50);
  EXPECT_TRUE(plan.trace.ends_with("wsws")) << plan.trace;
  for (int at = 1; at <= calls; ++at) {
    CheckpointStore(dir_, 2).set_aside_newer(10);
    for (const std::string& name : names()) {
      if (name.starts_with("step_0000020")) fs::remove(dir_ / name);
    }
    if (at % 3 == 0) {
      EXPECT_NE(save(Fault::error, at, at % 2 == 0 ? ENOSPC : EIO), "") << at;
      for (const std::string& name : names()) EXPECT_FALSE(name.starts_with("step_0000020")) << name;
    } else {
      const pid_t child = ::fork();
      if (child == 0) {
        save(Fault::die, at, 0);
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << at;
    }
    CheckpointStore store(dir_, 2);
    const auto before = store.newest();
    ASSERT_TRUE(before);
    EXPECT_TRUE(holds(*before, before->meta.step == 10 ? old_ : new_)) << at;
    store.prepare();
    const auto after = store.newest();
    ASSERT_TRUE(after);
    EXPECT_EQ(after->meta.step, before->meta.step) << at;
    EXPECT_EQ(store.list().back(), after->meta.step);
  }
}

// C2: an unfinished file is passed over, and when it is all there is, that is a fresh start.
TEST_F(MarkTest, C2OnlyWhatHasItsMarkCounts) {
  CheckpointStore store(dir_, 5);
  for (const int64_t step : {20, 30, 40}) store.save(few_meta(step), new_.tensors);
  fs::resize_file(store.path_of(40), 100'000);
  fs::remove(store.path_of(40).string() + ".complete");
  fs::resize_file(store.path_of(30).string() + ".complete", 0);
  fs::remove(store.path_of(20).string() + ".complete");
  fs::remove(store.path_of(20));
  EXPECT_EQ(store.list(), std::vector<int64_t>{10});
  // Its mark was cut off, but every byte of it is there and proves itself.
  EXPECT_EQ(store.newest()->meta.step, 30);
  EXPECT_NE(logged().find("step_0000040.safetensors was never written to its end"), std::string::npos);
  store.prepare();
  EXPECT_EQ(store.list(), (std::vector<int64_t>{10, 30}));
  EXPECT_FALSE(fs::exists(store.path_of(40)));

  for (const int64_t step : {10, 30}) {
    fs::resize_file(store.path_of(step), 0);
    fs::remove(store.path_of(step).string() + ".complete");
  }
  EXPECT_EQ(store.newest(), std::nullopt);
}

// A run moves on to a folder that can rename, or to one that cannot: what is there stays usable.
TEST_F(MarkTest, TheFolderMayLearnToRename) {
  renaming.error = 0;
  CheckpointStore store(dir_, 5);
  store.prepare();
  EXPECT_FALSE(fs::exists(dir_ / ".marks_whole_files"));
  store.save(few_meta(20), new_.tensors);
  EXPECT_EQ(store.list(), (std::vector<int64_t>{10, 20}));
  renaming.error = ENOSYS;
  store.prepare();
  EXPECT_EQ(store.list(), (std::vector<int64_t>{10, 20}));
  EXPECT_TRUE(fs::exists(store.path_of(20).string() + ".complete"));
}

}  // namespace
}  // namespace mythos
