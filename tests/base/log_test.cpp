#include "base/log.h"

#include "base/error.h"
#include "base/file.h"
#include "scratch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace mythos {
namespace {

// Leaves the log as it found it.
struct LogReset {
  ~LogReset() {
    log::set_file("");
    log::set_quiet(false);
  }
};

TEST(Log, LinesGoToStderrAndToTheFile) {
  const LogReset reset;
  const Scratch dir;
  log::set_file(dir / "log.txt");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  log::info("step {}", 1);
  log::warn("{} bytes free", 12);
  log::error("gone");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  const std::string expected = "step 1\nwarning: 12 bytes free\nerror: gone\n";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), expected);
  EXPECT_EQ(read_file(dir / "log.txt"), expected);
}

TEST(Log, QuietKeepsTheFileAndTheWarnings) {
  const LogReset reset;
  const Scratch dir;
  log::set_file(dir / "log.txt");
  log::set_quiet(true);
  testing::internal::CaptureStderr();
  log::info("a");
  log::warn("b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: b\n");
  EXPECT_EQ(read_file(dir / "log.txt"), "a\nwarning: b\n");
}

TEST(Log, TheFileIsContinuedNotReplaced) {
  const LogReset reset;
  const Scratch dir;
  log::set_quiet(true);
  write_file_atomically(dir / "log.txt", "before\n");
  log::set_file(dir / "log.txt");
  log::info("after");
  log::set_file("");
  log::info("nowhere");
  EXPECT_EQ(read_file(dir / "log.txt"), "before\nafter\n");
}

TEST(Log, AFileThatCannotBeOpenedIsNamed) {
  const LogReset reset;
  const Scratch dir;
  try {
    log::set_file(dir / "none" / "log.txt");
    FAIL() << "opened";
  } catch (const Error& e) {
    EXPECT_NE(e.line().find("none/log.txt: No such file"), std::string::npos) << e.line();
  }
}

TEST(Log, AFullDiskDoesNotEndTheRun) {
  const LogReset reset;
  const int full = ::open("/dev/full", O_WRONLY);
  if (full < 0) GTEST_SKIP() << "no /dev/full here";
  ASSERT_EQ(::write(full, "x", 1), -1);  // it is really full
  ::close(full);
  log::set_quiet(true);
  log::set_file("/dev/full");
  EXPECT_NO_THROW(log::info("a line that cannot be written"));
}

TEST(Log, LinesOfManyThreadsStayWhole) {
  const LogReset reset;
  const Scratch dir;
  log::set_quiet(true);
  log::set_file(dir / "log.txt");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) log::info("{}", std::string(50, static_cast<char>('a' + t)));
    });
  }
  for (auto& t : threads) t.join();
  const std::string text = read_file(dir / "log.txt");
  ASSERT_EQ(text.size(), 4U * 200 * 51);
  for (size_t i = 0; i < text.size(); i += 51) EXPECT_EQ(text.substr(i, 51), std::string(50, text[i]) + "\n");
}

TEST(Log, LinesKeptForTheFileComeFirstInIt) {
  const LogReset reset;
  const Scratch dir;
  testing::internal::CaptureStderr();
  log::info("lost");
  log::keep_for_file();
  log::info("early");
  log::set_quiet(true);
  log::warn("and warned");
  log::set_file(dir / "log.txt");
  log::info("late");
  log::set_file(dir / "other.txt");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "lost\nearly\nwarning: and warned\n");
  EXPECT_EQ(read_file(dir / "log.txt"), "early\nwarning: and warned\nlate\n");
  EXPECT_EQ(read_file(dir / "other.txt"), "");
}

TEST(Log, NoLiveLineWhereThereIsNoTerminal) {
  const LogReset reset;
  if (log::is_terminal()) GTEST_SKIP() << "stderr is a terminal";
  testing::internal::CaptureStderr();
  log::live_line("50%");
  log::live_line("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace mythos
