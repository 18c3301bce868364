// Every system call a save makes, failing or being the last thing the process does. This program defines write, fsync,
// rename and fallocate itself, so the library's calls come here.
#include "checkpoint/store.h"
#include "support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cerrno>

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
int rename(const char* from, const char* to) { return strikes('r') ? -1 : ::renameat(AT_FDCWD, from, AT_FDCWD, to); }
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
  CheckpointStore store(dir_, 2);
  for (const int error : {ENOSYS, EOPNOTSUPP, EXDEV}) {
    plan = {true, Fault::error, 3, error, 0, ""};
    const std::string line = error_line([&] { store.prepare(); });
    EXPECT_EQ(plan.trace, "wsr");
    plan.armed = false;
    EXPECT_NE(line.find("renaming to"), std::string::npos) << line;
  }
  // A folder that cannot be synced is no reason to stop.
  plan = {true, Fault::error, 4, EINVAL, 0, ""};
  EXPECT_NO_THROW(store.prepare());
  EXPECT_EQ(plan.trace, "wsrd");
}

}  // namespace
}  // namespace mythos
