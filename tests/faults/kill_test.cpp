// kill -9 at every kind of call that changes a file, and at any instant.
#include "faulty_run.h"

#include "base/random.h"

namespace mythos::testing {
namespace {

constexpr int killed = 128 + SIGKILL;

// Every save renames, and with two kept every one removes another.
std::vector<std::string> saving(bool background) {
  return {"checkpoint.every=1", "checkpoint.keep_last=2", fmt::format("checkpoint.background={}", background)};
}

TEST(Killed, InsideEveryKindOfCall) {
  Random random(derive_seed(20, 0, "calls"));
  for (const std::string kind : {"open", "write", "sync", "rename", "unlink"}) {
    for (const std::string act : {"kill", "killed"}) {
      const bool background = random.below(2) == 1;
      const FaultyRun run(saving(background));
      int struck = 0;
      // A second and a third blow, to a run that is going on or mending.
      for (int blow = 0; blow < 3; ++blow) {
        const uint64_t at = 1 + random.below(kind == "write" ? 100 : 6);
        const int64_t before = run.newest_whole();
        const Ended ended = run.start({.strike = fmt::format("{} {} {}", act, kind, at)});
        SCOPED_TRACE(fmt::format("{} {} {}, background {}", act, kind, at, background));
        expect_clean_end(ended, {0, killed});
        EXPECT_EQ(ended.code == killed, ended.struck);
        struck += ended.struck;
        EXPECT_GE(run.newest_whole(), before);
      }
      EXPECT_GT(struck, 0) << act << " " << kind;
      run.expect_ends_like_undisturbed();
    }
  }
}

TEST(Killed, AtAnyInstant) {
  Random random(derive_seed(21, 0, "instants"));
  const auto span = static_cast<uint64_t>(FaultyRun::milliseconds());
  int struck = 0;
  for (int round = 0; round < 4; ++round) {
    const FaultyRun run(saving(round % 2 == 0));
    for (int blow = 0; blow < 6; ++blow) {
      const int64_t before = run.newest_whole();
      const Ended ended = run.start({.kill_after_ms = static_cast<int>(random.below(span))});
      expect_clean_end(ended, {0, killed});
      struck += ended.struck;
      EXPECT_GE(run.newest_whole(), before);
    }
    run.expect_ends_like_undisturbed();
  }
  EXPECT_GE(struck, 12);
}

// P7 (c): with a save at every step, most instants lie in one.
TEST(Stopped, AtAnyInstant) {
  Random random(derive_seed(28, 0, "instants"));
  const auto span = static_cast<uint64_t>(FaultyRun::milliseconds());
  for (const bool background : {false, true}) {
    const FaultyRun run(saving(background));
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      const Ended ended = run.start({.kill_after_ms = static_cast<int>(random.below(span)), .signal = signal});
      expect_clean_end(ended, {0, 128 + signal});
      const auto done = steps_in(run.run() / "metrics.jsonl");
      EXPECT_EQ(run.newest_whole(), static_cast<int64_t>(done.size())) << "the last complete step is saved";
    }
    run.expect_ends_like_undisturbed();
  }
}

TEST(Killed, WithAnotherTrainerAtTheDoor) {
  const FaultyRun run(saving(true));
  {
    const auto first = run.program();
    ASSERT_TRUE(first->wait_until([&] { return run.newest_whole() > 0; })) << first->err();
    first->signal(SIGSTOP);
    ASSERT_FALSE(first->ended());
    const Ended second = run.start();
    EXPECT_EQ(second.code, 3) << second.err;
    EXPECT_NE(second.err.find("another process is"), std::string::npos) << second.err;
    first->signal(SIGKILL);
    first->wait();
  }
  // The lock died with it.
  run.expect_ends_like_undisturbed();
}

}  // namespace
}  // namespace mythos::testing
