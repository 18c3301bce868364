#include "base/file.h"

#include "base/error.h"
#include "scratch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace mythos {
namespace {
namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// What the person would read, or "" if nothing was thrown.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::failed);
    return e.line();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Runs `work` in a child and returns its exit status; the child is this process's copy and ends without clean-up.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(ReadFile, GivesEveryByte) {
  const Scratch dir;
  const std::string bytes("a\0b\r\n\xff", 6);
  put(dir / "x", bytes);
  EXPECT_EQ(read_file(dir / "x"), bytes);
  put(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
  put(dir / "large", std::string(1 << 20, 'z'));
  EXPECT_EQ(read_file(dir / "large"), std::string(1 << 20, 'z'));
}

TEST(ReadFile, ReadsFilesThatReportNoSize) {
  EXPECT_TRUE(contains(read_file("/proc/meminfo"), "MemTotal"));
  EXPECT_TRUE(contains(error_of([] { read_file("/proc/meminfo", 10); }), "more than the 10 allowed"));
}

TEST(ReadFile, SaysWhatIsWrong) {
  const Scratch dir;
  EXPECT_TRUE(contains(error_of([&] { read_file(dir / "none"); }), "none: No such file"));
  EXPECT_TRUE(contains(error_of([&] { read_file(dir.path()); }), "it is a folder"));
  put(dir / "x", "12345");
  EXPECT_EQ(read_file(dir / "x", 5), "12345");
  EXPECT_TRUE(contains(error_of([&] { read_file(dir / "x", 4); }), "has 5 bytes, more than the 4 allowed"));
}

TEST(ReadFile, DoesNotWaitForThePipeOfNobody) {
  const Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { read_file(dir / "pipe"); }), "not a regular file"));
}

TEST(MappedFile, ShowsTheFile) {
  const Scratch dir;
  put(dir / "x", "hello");
  MappedFile file(dir / "x");
  EXPECT_EQ(file.text(), "hello");
  const MappedFile moved(std::move(file));
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_TRUE(file.bytes().empty());  // NOLINT: a moved-from map is empty, not dangling
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const Scratch dir;
  put(dir / "empty", "");
  EXPECT_TRUE(MappedFile(dir / "empty").bytes().empty());
  EXPECT_EQ(MappedFile(dir / "empty").text(), "");
}

TEST(MappedFile, SaysWhatIsWrong) {
  const Scratch dir;
  EXPECT_TRUE(contains(error_of([&] { MappedFile f(dir / "none"); }), "none: No such file"));
  EXPECT_TRUE(contains(error_of([&] { MappedFile f(dir.path()); }), "it is a folder"));
}

TEST(AtomicFile, WithoutCommitTheTargetIsUntouched) {
  const Scratch dir;
  put(dir / "x", "old");
  {
    AtomicFile f(dir / "x");
    f.write("new");
    EXPECT_EQ(read_file(dir / "x"), "old");
  }
  EXPECT_EQ(read_file(dir / "x"), "old");
  EXPECT_EQ(dir.entries(), 1U);
}

TEST(AtomicFile, CommitReplacesTheTarget) {
  const Scratch dir;
  put(dir / "x", "an older and longer text");
  AtomicFile f(dir / "x");
  f.write("0123456789");
  const std::string two = "AB";
  f.write_at(3, std::as_bytes(std::span(two)));
  f.write("!");
  EXPECT_EQ(f.size(), 11U);
  f.commit();
  EXPECT_EQ(read_file(dir / "x"), "012AB56789!");
  EXPECT_EQ(dir.entries(), 1U);
}

TEST(AtomicFile, ExceptionsLeaveNoTemporaryBehind) {
  const Scratch dir;
  EXPECT_THROW(
      {
        AtomicFile f(dir / "x");
        f.write("half");
        throw std::runtime_error("the work failed");
      },
      std::runtime_error);
  EXPECT_EQ(dir.entries(), 0U);
}

TEST(AtomicFile, OverwritesOnlyWhatWasWritten) {
  const Scratch dir;
  AtomicFile f(dir / "x");
  f.write("0123");
  const std::string two = "AB";
  const auto bytes = std::as_bytes(std::span(two));
  f.write_at(2, bytes);
  EXPECT_TRUE(contains(error_of([&] { f.write_at(3, bytes); }), "cannot be overwritten"));
  EXPECT_TRUE(contains(error_of([&] { f.write_at(UINT64_MAX, bytes); }), "cannot be overwritten"));
  f.commit();
  EXPECT_EQ(read_file(dir / "x"), "01AB");
}

// Large files are sent to the disk as they grow: that changes nothing of what is in them.
TEST(AtomicFile, PacedFilesAreTheSame) {
  const Scratch scratch;
  std::string text(size_t{3} << 20, '\0');
  std::string all;
  AtomicFile file(scratch / "large");
  for (int i = 0; i < 11; ++i) {
    for (size_t k = 0; k < text.size(); ++k) text[k] = static_cast<char>(k * 31 + static_cast<size_t>(i));
    file.write(text);
    file.pace();
    all += text;
  }
  file.commit();
  EXPECT_TRUE(read_file(scratch / "large") == all);
}

TEST(AtomicFile, TwoWritersOfOneTargetDoNotMix) {
  const Scratch dir;
  AtomicFile a(dir / "x");
  AtomicFile b(dir / "x");
  a.write("aaaa");
  b.write("bb");
  a.commit();
  EXPECT_EQ(read_file(dir / "x"), "aaaa");
  b.commit();
  EXPECT_EQ(read_file(dir / "x"), "bb");
  EXPECT_EQ(dir.entries(), 1U);
}

TEST(AtomicFile, AFolderInThePlaceOfTheTargetStays) {
  const Scratch dir;
  fs::create_directory(dir / "x");
  const std::string line = error_of([&] { write_file_atomically(dir / "x", "text"); });
  EXPECT_TRUE(contains(line, "renaming to")) << line;
  EXPECT_TRUE(fs::is_directory(dir / "x"));
  EXPECT_EQ(dir.entries(), 1U);
}

TEST(AtomicFile, MissingFolderIsNamed) {
  const Scratch dir;
  const std::string line = error_of([&] { AtomicFile f(dir / "none" / "x"); });
  EXPECT_TRUE(contains(line, "none/x: No such file")) << line;
  EXPECT_TRUE(contains(line, "check that the folder exists and is writable")) << line;
}

TEST(AtomicFile, UnwritableFolderIsNamed) {
  const Scratch dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0500), 0);
  // Root may write anywhere, so a child gives its rights up first.
  const int status = in_child([&] {
    if (::geteuid() == 0 && (::chown(dir.path().c_str(), 65534, 65534) != 0 || ::setuid(65534) != 0)) return 77;
    const std::string line = error_of([&] { AtomicFile f(dir / "x"); });
    return contains(line, "Permission denied") && contains(line, "writable") ? 0 : 1;
  });
  if (status == 77) GTEST_SKIP() << "cannot become a user without rights here";
  EXPECT_EQ(status, 0);
}

// A file at the process's size limit fails like one on a full disk, and needs no rights to cause.
TEST(AtomicFile, AtTheFileSizeLimitTheOldFileStays) {
  const Scratch dir;
  put(dir / "x", "old");
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    const std::string line = error_of([&] { write_file_atomically(dir / "x", std::string(10000, 'n')); });
    return contains(line, "failed after 4096 bytes: File too large") && contains(line, "ulimit -f") ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(dir / "x"), "old");
  EXPECT_EQ(dir.entries(), 1U);
}

// A real full disk: a tiny file system, mounted in a mount namespace of its own so that nobody else sees it.
TEST(AtomicFile, OnAFullDiskTheOldFileStays) {
  const Scratch dir;
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
      return 77;
    }
    put(dir / "x", "old");
    const std::string line = error_of([&] { write_file_atomically(dir / "x", std::string(100000, 'n')); });
    const bool told = contains(line, "No space left") && contains(line, "the disk is full: free space");
    return told && read_file(dir / "x") == "old" && dir.entries() == 1 ? 0 : 1;
  });
  if (status == 77) GTEST_SKIP() << "may not mount a file system here";
  EXPECT_EQ(status, 0);
}

// The name of the temporary file a child left when it was killed in the middle of writing.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(folder)) names.push_back(e.path().filename().string());
  return names;
}

TEST(StaleTemporaries, OfAKilledProcessAreRemoved) {
  const Scratch dir;
  put(dir / "x", "old");
  in_child([&] {
    AtomicFile f(dir / "x");
    f.write("half");
    ::raise(SIGKILL);
    return 0;
  });
  ASSERT_EQ(dir.entries(), 2U);
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"x"});
  EXPECT_EQ(read_file(dir / "x"), "old");
}

TEST(StaleTemporaries, OfALivingWriterStay) {
  const Scratch dir;
  AtomicFile mine(dir / "mine");
  mine.write("half");
  int ready[2];
  int go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    char c = 0;
    AtomicFile f(dir / "other");
    f.write("half");
    const bool told = ::write(ready[1], &c, 1) == 1 && ::read(go[0], &c, 1) == 1;
    f.commit();
    ::_exit(told ? 0 : 1);
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(dir.entries(), 2U);
  ASSERT_EQ(::write(go[1], &c, 1), 1);
  int status = 1;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  mine.commit();
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
  EXPECT_EQ(read_file(dir / "mine"), "half");
  EXPECT_EQ(read_file(dir / "other"), "half");
}

// Process ids come back, in a container the very next time: a leftover named after a living process is one all the
// same.
TEST(StaleTemporaries, UnderAnIdInUseAgainAreRemovedAndReplaced) {
  const Scratch dir;
  const std::string name = ".x.tmp-" + std::to_string(::getpid());
  put(dir / name, "a leftover longer than what comes now");
  put(dir / ".y.tmp-1", "of another process that lives");
  write_file_atomically(dir / "x", "new");
  EXPECT_EQ(read_file(dir / "x"), "new");
  put(dir / name, "leftover");
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"x"});
}

TEST(StaleTemporaries, FilesOfOtherNamesStay) {
  const Scratch dir;
  const std::vector<std::string> names = {"x.tmp-999999", ".x.tmp-",   ".x.tmp-abc",
                                          ".x.tmp-12a",   ".hidden",   ".x.tmp-999999.gz",
                                          ".x.tmp--5",    ".x.tmp-1-", ".x.tmp-99999999999999999999"};
  for (const auto& n : names) put(dir / n, "kept");
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(dir.entries(), names.size());
  EXPECT_NO_THROW(remove_stale_temporaries(dir / "none"));
}

TEST(SetFolderAside, TakesTheFirstFreeNameAndKeepsEverything) {
  const Scratch scratch;
  for (int n = 1; n <= 2; ++n) {
    fs::create_directory(scratch / "run");
    put(scratch / "run/file", std::to_string(n));
    EXPECT_EQ(set_folder_aside((scratch / "run").string() + "/"), scratch / ("run." + std::to_string(n)));
    EXPECT_EQ(read_file(scratch / ("run." + std::to_string(n)) / "file"), std::to_string(n));
  }
  EXPECT_FALSE(fs::exists(scratch / "run"));
  EXPECT_TRUE(contains(error_of([&] { set_folder_aside(scratch / "none"); }), "cannot set"));
}

TEST(MakeFolder, MakesParentsAndAcceptsWhatExists) {
  const Scratch dir;
  make_folder(dir / "a" / "b" / "c");
  make_folder(dir / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(dir / "a" / "b" / "c"));
}

TEST(MakeFolder, AFileInItsPlaceIsNamed) {
  const Scratch dir;
  put(dir / "a", "");
  EXPECT_TRUE(contains(error_of([&] { make_folder(dir / "a"); }), "cannot create the folder"));
  EXPECT_TRUE(contains(error_of([&] { make_folder(dir / "a" / "b"); }), "choose a folder you may write to"));
}

}  // namespace
}  // namespace mythos
