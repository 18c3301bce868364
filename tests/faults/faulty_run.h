// A small run of the real program that things happen to, and what must hold afterwards: the newest good checkpoint
// loads, and the run, started again, ends bit for bit like the undisturbed one, with every step in its files once.
#pragma once

#include "../support/program.h"
#include "../support/tiny.h"
#include "base/error.h"
#include "checkpoint/store.h"

#include <fmt/ranges.h>
#include <sys/mount.h>

#include <map>
#include <set>

namespace mythos::testing {

constexpr int64_t total_steps = 24;

/// A small file system in memory, unmounted at the end.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path at, int64_t bytes) : at_(std::move(at)) {
    fs::create_directories(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, fmt::format("size={}", bytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  bool resize(int64_t bytes) {
    return ::mount("tmpfs", at_.c_str(), "tmpfs", MS_REMOUNT, fmt::format("size={}", bytes).c_str()) == 0;
  }
  /// Lays a read-only view over it, which files that are open for writing do not hinder, or takes it away.
  bool read_only(bool yes) {
    if (!yes) return ::umount2(at_.c_str(), MNT_DETACH) == 0;
    return ::mount(at_.c_str(), at_.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
           ::mount(nullptr, at_.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
  }

 private:
  fs::path at_;
  bool mounted_ = false;
};

/// What a start of the program is to meet.
struct Meets {
  std::string strike = {};  ///< "ACT CLASS AT", see strike.cpp
  std::string clock = {};   ///< "AT SECONDS"
  int kill_after_ms = -1;
  int signal = SIGKILL;  ///< after those milliseconds
};

struct Ended {
  int code = -1;
  bool struck = false;  ///< what was to happen did
  std::string err;
};

class FaultyRun {
 public:
  /// `settings`: further "section.key=VALUE"; `folder`: the run's, else a folder of its own.
  explicit FaultyRun(std::vector<std::string> settings = {}, fs::path folder = {})
      : settings_(std::move(settings)), run_(folder.empty() ? own_ / "run" : std::move(folder)) {}

  [[nodiscard]] const fs::path& run() const { return run_; }
  [[nodiscard]] fs::path checkpoints() const { return run_ / "checkpoints"; }
  [[nodiscard]] const fs::path& folder() const { return own_.path(); }

  std::unique_ptr<Program> program(const Meets& meets = {}, const std::vector<std::string>& options = {},
                                   const std::vector<std::pair<std::string, std::string>>& environment = {}) const {
    std::vector<std::string> arguments = {"train", tiny().config().string(), "--set", "run.dir=" + run_.string()};
    for (const auto& s : settings_) arguments.insert(arguments.end(), {"--set", s});
    arguments.insert(arguments.end(), options.begin(), options.end());
    Program::Options o;
    o.folder = own_.path();
    o.environment = environment;
    if (!meets.strike.empty() || !meets.clock.empty()) {
      o.environment.insert(o.environment.end(), {{"LD_PRELOAD", MYTHOS_STRIKE_LIBRARY},
                                                 {"MYTHOS_STRIKE_FOLDER", run_.string()},
                                                 {"MYTHOS_STRIKE_REPORT", (own_ / "struck").string()}});
      if (!meets.strike.empty()) o.environment.emplace_back("MYTHOS_STRIKE", meets.strike);
      if (!meets.clock.empty()) o.environment.emplace_back("MYTHOS_CLOCK", meets.clock);
    }
    return std::make_unique<Program>(std::move(arguments), o);
  }

  /// One start of the program, to its end.
  Ended start(const Meets& meets = {}, const std::vector<std::string>& options = {},
              const std::vector<std::pair<std::string, std::string>>& environment = {}) const {
    fs::remove(own_ / "struck");
    const auto p = program(meets, options, environment);
    Ended ended;
    if (meets.kill_after_ms >= 0) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(meets.kill_after_ms);
      while (!p->ended() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ended.struck = !p->ended();
      p->signal(meets.signal);
    }
    ended.code = p->wait();
    ended.err = p->err();
    ended.struck = ended.struck || fs::exists(own_ / "struck");
    return ended;
  }

  /// The step of the newest checkpoint that is whole, every byte of it verified; 0 if there is none.
  [[nodiscard]] int64_t newest_whole() const {
    int64_t newest = 0;
    if (!fs::exists(checkpoints())) return newest;
    for (const int64_t step : CheckpointStore(checkpoints(), 1).list()) {
      try {
        Checkpoint::open(TinyRun::checkpoint_of(run_, step)).verify();
        newest = std::max(newest, step);
      } catch (const Error&) {
      }
    }
    return newest;
  }

  /// Starts the run once more with nothing in its way, and compares.
  void expect_ends_like_undisturbed(bool metrics = true, const std::vector<std::string>& options = {}) const {
    const Ended ended = start({}, options);
    ASSERT_EQ(ended.code, 0) << ended.err;
    expect_same_state(TinyRun::checkpoint_of(undisturbed(), total_steps), TinyRun::checkpoint_of(run_, total_steps));
    for (const auto& e : fs::recursive_directory_iterator(run_)) {
      EXPECT_EQ(e.path().filename().string().find(".tmp-"), std::string::npos) << e.path() << " was left behind";
    }
    if (!metrics) return;
    const auto whole = steps_in(undisturbed() / "metrics.jsonl");
    const auto ours = steps_in(run_ / "metrics.jsonl");
    ASSERT_EQ(ours.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      for (const char* key : {"step", "loss", "lr", "tokens", "batch"}) EXPECT_EQ(ours[i][key], whole[i][key]) << key;
    }
  }

  static const TinyRun& tiny() {
    static const TinyRun t;
    return t;
  }
  /// The folder of a run that nothing happened to; each step is trained on the same, whatever the settings of saving.
  static const fs::path& undisturbed() {
    static const fs::path folder = [] {
      log::set_quiet(true);
      const Outcome o = run_program({"train", tiny().config().string()});
      if (o.code != 0) throw std::runtime_error("the undisturbed run failed: " + o.err);
      return tiny().run();
    }();
    return folder;
  }
  static int64_t checkpoint_size() {
    return static_cast<int64_t>(fs::file_size(TinyRun::checkpoint_of(undisturbed(), total_steps)));
  }
  /// How long a start takes here, about, for instants to be drawn from.
  static int milliseconds() {
    static const int ms = [] {
      undisturbed();
      const FaultyRun run;
      const auto begin = std::chrono::steady_clock::now();
      run.start();
      return static_cast<int>(
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count());
    }();
    return ms;
  }

 private:
  TemporaryFolder own_;
  std::vector<std::string> settings_;
  fs::path run_;
};

/// Ended by itself, or by the signal sent, with one clear sentence where something went wrong; never by a crash.
inline void expect_clean_end(const Ended& ended, const std::set<int>& codes) {
  EXPECT_TRUE(codes.contains(ended.code))
      << "exit " << ended.code << ", expected one of " << fmt::format("{}", codes) << "\n"
      << ended.err;
  for (const char* crash : {"terminate called", "Segmentation", "Assertion"}) {
    EXPECT_EQ(ended.err.find(crash), std::string::npos) << ended.err;
  }
}

}  // namespace mythos::testing
