// Rounds of faults drawn from a seed: a run meets several, one after another, and must end like the undisturbed one.
// MYTHOS_SOAK_SECONDS and MYTHOS_SOAK_SEED (scripts/soak sets them) let it go on for longer, from another seed.
#include "damage.h"

#include <cerrno>
#include <cstdlib>

namespace mythos::testing {
namespace {

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class Soak : public ::testing::Test {
 protected:
  // One run, until it has met its faults and ended.
  void round(uint64_t seed) {
    Random random(derive_seed(seed, 0, "soak"));
    const FaultyRun run({fmt::format("checkpoint.every={}", 1 + random.below(5)),
                         fmt::format("checkpoint.keep_last={}", 2 + random.below(2)),
                         fmt::format("checkpoint.background={}", random.below(2) == 1)});
    std::string story = fmt::format("seed {}:", seed);
    bool metrics = true;
    for (uint64_t faults = 2 + random.below(5); faults > 0; --faults) {
      const std::string happened = one_fault(run, random, metrics);
      story += " " + happened + ";";
      SCOPED_TRACE(story);
      if (HasFailure()) return;
    }
    SCOPED_TRACE(story);
    run.expect_ends_like_undisturbed(metrics);
  }

  std::string one_fault(const FaultyRun& run, Random& random, bool& metrics) {
    const int64_t before = run.newest_whole();
    switch (random.below(7)) {
      case 0: {
        const auto ms = static_cast<int>(random.below(static_cast<uint64_t>(FaultyRun::milliseconds())));
        const int signal = std::array{SIGKILL, SIGKILL, SIGTERM, SIGINT, SIGHUP}[random.below(5)];
        const std::string what = fmt::format("signal {} after {} ms", signal, ms);
        const Ended ended = run.start({.kill_after_ms = ms, .signal = signal});
        expect_clean_end(ended, {0, 128 + signal});
        check(run, before, what, ended);
        return count(ended, signal == SIGKILL ? "kill -9 at an instant" : "other signal", what);
      }
      case 1:
      case 2: {
        const std::string kind = std::array{"open", "write", "sync", "rename", "unlink"}[random.below(5)];
        const std::string what = fmt::format("{} {} {}", random.below(2) == 0 ? "kill" : "killed", kind,
                                             1 + random.below(kind == "write" ? 300 : 20));
        const Ended ended = run.start({.strike = what});
        expect_clean_end(ended, {0, 128 + SIGKILL});
        check(run, before, what, ended);
        return count(ended, "kill -9 inside " + kind, what);
      }
      case 3: {
        const int error = std::array{ENOSPC, EIO, EROFS}[random.below(3)];
        const std::string what =
            fmt::format("{}{} any {}", error, random.below(2) == 0 ? "" : "+", 1 + random.below(300));
        metrics = false;  // a line that could not be written is lost
        const Ended ended = run.start({.strike = what});
        expect_clean_end(ended, {0, 1, 3});
        check(run, before, what, ended);
        return count(ended, "failing disk", what);
      }
      case 4: {
        const long off = std::array{-86'400L, 31'536'000L}[random.below(2)];
        const std::string clock = fmt::format("{} {}", 1 + random.below(40), off);
        const Ended ended = run.start({.clock = clock});
        expect_clean_end(ended, {0});
        check(run, before, clock, ended);
        return count(ended, "clock jump", "clock " + clock);
      }
      case 5: {
        const auto first = run.program();
        const auto second = run.program();
        const int a = first->wait();
        const int b = second->wait();
        EXPECT_TRUE((a == 0 && (b == 0 || b == 3)) || (a == 3 && b == 0)) << a << first->err() << b << second->err();
        ++survived_["two trainers at once"];
        return "two trainers";
      }
      default:
        return damaged(run, random, metrics);
    }
  }

  // A file of the run goes bad. It goes on, or is mended and goes on.
  std::string damaged(const FaultyRun& run, Random& random, bool& metrics) {
    std::vector<fs::path> files;
    if (fs::exists(run.run())) {
      for (const auto& e : fs::recursive_directory_iterator(run.run())) {
        if (e.is_regular_file() && e.path().filename() != ".lock") files.push_back(e.path());
      }
    }
    if (files.empty()) return "nothing to damage";
    std::sort(files.begin(), files.end());
    const fs::path file = files[random.below(files.size())];
    const fs::path copy = run.folder() / "copy";
    fs::copy_file(file, copy, fs::copy_options::overwrite_existing);
    if (file.filename() == "metrics.jsonl") metrics = false;
    const std::string what =
        fmt::format("{}: {}", file.filename().string(), damage(file, static_cast<Damage>(random.below(3)), random));
    const Ended ended = run.start();
    SCOPED_TRACE(what);
    expect_clean_end(ended, {0, 1, 2});
    if (ended.code != 0) {
      EXPECT_NE(ended.err.find(file.filename().string()), std::string::npos) << ended.err;
      fs::copy_file(copy, file, fs::copy_options::overwrite_existing);
    }
    ++survived_["damaged file"];
    return what;
  }

  static void check(const FaultyRun& run, int64_t before, const std::string& what, const Ended& ended) {
    EXPECT_GE(run.newest_whole(), before) << what << ": a whole checkpoint is gone\n" << ended.err;
  }
  std::string count(const Ended& ended, const std::string& kind, const std::string& what) {
    if (ended.struck) ++survived_[kind];
    return what;
  }

  std::map<std::string, int64_t> survived_;
};

TEST_F(Soak, SeededRounds) {
  const auto seed = static_cast<uint64_t>(environment("MYTHOS_SOAK_SEED", 1));
  const int64_t seconds = environment("MYTHOS_SOAK_SECONDS", 0);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count();
  };
  int64_t rounds = 0;
  int64_t said = 0;
  const auto say = [&] {
    int64_t all = 0;
    std::string kinds;
    for (const auto& [kind, n] : survived_) {
      all += n;
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", n, kind);
    }
    fmt::print("soak: {} rounds, {} faults survived in {} s ({})\n", rounds, all, elapsed(), kinds);
    std::fflush(stdout);
  };
  // Without a time, as many as fit into a test.
  while (seconds > 0 ? elapsed() < seconds : rounds < 4) {
    round(seed + static_cast<uint64_t>(rounds));
    if (HasFailure()) {
      fmt::print("soak: round {} failed; again with MYTHOS_SOAK_SEED={}\n", rounds, seed + rounds);
      return;
    }
    ++rounds;
    if (elapsed() - said >= 60) {
      said = elapsed();
      say();
    }
  }
  say();
}

}  // namespace
}  // namespace mythos::testing
