#include "base/append_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "scratch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

namespace mythos {
namespace {
namespace fs = std::filesystem;

TEST(AppendFile, GoesOnWhereTheFileEnds) {
  const Scratch dir;
  AppendFile(dir / "x").write("one\n");
  AppendFile file(dir / "x");
  EXPECT_EQ(file.write("two\n"), "");
  AppendFile moved = std::move(file);
  EXPECT_EQ(moved.write("three\n"), "");
  EXPECT_EQ(read_file(dir / "x"), "one\ntwo\nthree\n");
  EXPECT_FALSE(file.is_open());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(file.write("nowhere\n"), "");
}

TEST(AppendFile, ARotationLosesNoLine) {
  const Scratch dir;
  AppendFile file(dir / "x");
  file.write("1\n");
  fs::rename(dir / "x", dir / "x.1");  // logrotate
  file.write("2\n");
  EXPECT_EQ(read_file(dir / "x.1"), "1\n");
  EXPECT_EQ(read_file(dir / "x"), "2\n");
  fs::copy_file(dir / "x", dir / "x.2");  // logrotate with copytruncate
  fs::resize_file(dir / "x", 0);
  file.write("3\n");
  EXPECT_EQ(read_file(dir / "x"), "3\n") << "no hole where the old lines were";
  fs::remove(dir / "x");
  file.write("4\n");
  EXPECT_EQ(read_file(dir / "x"), "4\n");
}

TEST(AppendFile, WhereNoNewFileCanBeTheOldOneTakesTheLines) {
  const Scratch dir;
  fs::create_directory(dir / "folder");
  AppendFile file(dir / "folder" / "x");
  fs::rename(dir / "folder", dir / "moved");
  EXPECT_EQ(file.write("still\n"), "");
  EXPECT_EQ(read_file(dir / "moved" / "x"), "still\n");
}

TEST(AppendFile, WhatDoesNotFitIsNotThereAtAll) {
  const Scratch dir;
  AppendFile file(dir / "x");
  file.write("12345678\n");
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{12, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string why = file.write("abcdefgh\n");
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(why, "File too large");
  EXPECT_EQ(read_file(dir / "x"), "12345678\n");
  EXPECT_EQ(file.write("later\n"), "");
  EXPECT_EQ(read_file(dir / "x"), "12345678\nlater\n");
}

TEST(AppendFile, AFileThatCannotBeOpenedIsNamed) {
  const Scratch dir;
  try {
    AppendFile file(dir / "none" / "x");
    FAIL() << "opened";
  } catch (const Error& e) {
    EXPECT_NE(e.line().find("none/x: No such file"), std::string::npos) << e.line();
  }
}

TEST(FolderLock, IsSeenByOthersAndGoesWithItsProcess) {
  const Scratch dir;
  EXPECT_FALSE(FolderLock::is_held(dir.path()));
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(dir.path(), "working in", "");
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  EXPECT_TRUE(FolderLock::is_held(dir.path()));
  EXPECT_THROW(FolderLock(dir.path(), "working in", ""), Error);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(FolderLock::is_held(dir.path()));
  EXPECT_TRUE(fs::exists(dir / ".lock"));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FolderLock, LookingAtItMakesNobodyFail) {
  const Scratch dir;
  { const FolderLock lock(dir.path(), "working in", ""); }
  std::jthread looking([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) FolderLock::is_held(dir.path());
  });
  for (int i = 0; i < 200; ++i) EXPECT_NO_THROW(FolderLock(dir.path(), "working in", ""));
}

}  // namespace
}  // namespace mythos
