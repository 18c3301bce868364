#include "base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

namespace mythos {
namespace {

// The exit status of a child that runs `work` with the handlers installed; 128 + n if signal n killed it.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    install_stop_handlers();
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return 1000 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

TEST(Signals, TheFirstOneIsARequest) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_EQ(in_child([&] {
                if (stop_requested()) return 1;
                ::raise(number);
                return stop_signal() == number && stop_requested() ? 0 : 2;
              }),
              0)
        << number;
  }
}

TEST(Signals, TheSecondOneEndsTheProcessAtOnce) {
  EXPECT_EQ(in_child([] {
              ::raise(SIGTERM);
              ::raise(SIGTERM);
              return 0;
            }),
            128 + SIGTERM);
  EXPECT_EQ(in_child([] {
              ::raise(SIGTERM);
              ::raise(SIGINT);
              return 0;
            }),
            128 + SIGINT);
}

TEST(Signals, SentFromOutside) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    install_stop_handlers();
    char c = 0;
    if (::write(ready[1], &c, 1) != 1) ::_exit(1);
    while (!stop_requested()) ::usleep(1000);  // not pause(): the signal may come just before it
    if (::write(ready[1], &c, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

TEST(Signals, ATerminalThatHangsUpTwiceIsOneRequest) {
  EXPECT_EQ(in_child([] {
              ::raise(SIGHUP);
              ::raise(SIGHUP);
              return stop_signal() == SIGHUP ? 0 : 1;
            }),
            0);
}

TEST(Signals, UnderNohupTheTerminalMayGo) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGHUP, SIG_IGN);
    install_stop_handlers();
    ::raise(SIGHUP);
    ::_exit(stop_requested() ? 1 : 0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Signals, ARequestDealtWithIsForgotten) {
  EXPECT_EQ(in_child([] {
              ::raise(SIGTERM);
              clear_stop_request();
              if (stop_requested()) return 1;
              ::raise(SIGINT);
              return stop_signal() == SIGINT ? 0 : 2;
            }),
            0);
}

TEST(Signals, AfterARequestOfTheProgramItselfTheFirstSignalIsStillTheFirst) {
  EXPECT_EQ(in_child([] {
              request_stop(SIGTERM);
              ::raise(SIGINT);
              return stop_signal() == SIGTERM ? 0 : 1;
            }),
            0);
  EXPECT_EQ(in_child([] {
              request_stop(SIGTERM);
              ::raise(SIGINT);
              ::raise(SIGINT);
              return 0;
            }),
            128 + SIGINT);
}

TEST(Signals, AClosedPipeAndAFileSizeLimitAreWriteErrors) {
  EXPECT_EQ(in_child([] {
              int pipe[2];
              if (::pipe(pipe) != 0) return 1;
              ::close(pipe[0]);
              return ::write(pipe[1], "x", 1) == -1 ? 0 : 2;
            }),
            0);
  EXPECT_EQ(in_child([] {
              const rlimit limit{0, 0};
              FILE* file = ::tmpfile();
              if (file == nullptr || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              return ::write(::fileno(file), "x", 1) == -1 ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace mythos
