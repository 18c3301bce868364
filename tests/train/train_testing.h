// What the trainer's tests share: starting a run in this process or as a program, and what must hold afterwards.
#pragma once

#include "../support/program.h"
#include "../support/tiny.h"
#include "base/error.h"
#include "base/signals.h"
#include "train/trainer.h"

#include <cmath>
#include <numbers>
#include <optional>

namespace mythos::testing {

class TrainTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_quiet(true); }
  void TearDown() override {
    log::set_file("");
    clear_stop_request();
  }

  /// A run in this process; `folder` instead of the usual one.
  TrainRequest request(std::vector<std::string> overrides = {}, const fs::path& folder = {}) const {
    TrainRequest r;
    r.config = tiny_.config();
    r.overrides = std::move(overrides);
    if (!folder.empty()) r.overrides.push_back("run.dir=" + folder.string());
    return r;
  }
  TrainResult start(std::vector<std::string> overrides = {}, const fs::path& folder = {}) const {
    return go(request(std::move(overrides), folder));
  }
  static TrainResult go(const TrainRequest& r) {
    const TrainResult result = train(r);
    log::set_file("");
    return result;
  }
  /// The line of the error that a start ends with.
  static std::string error_of(const TrainRequest& r, ExitCode code) {
    try {
      train(r);
    } catch (const Error& e) {
      EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.line();
      log::set_file("");
      return e.line();
    }
    log::set_file("");
    ADD_FAILURE() << "no error";
    return "";
  }

  std::unique_ptr<Program> program(std::vector<std::string> overrides, const fs::path& folder = {}) const {
    std::vector<std::string> arguments = {"train", tiny_.config().string()};
    for (auto& o : overrides) arguments.insert(arguments.end(), {"--set", std::move(o)});
    if (!folder.empty()) arguments.insert(arguments.end(), {"--set", "run.dir=" + folder.string()});
    Program::Options options;
    options.folder = tiny_.folder();
    return std::make_unique<Program>(std::move(arguments), options);
  }

  [[nodiscard]] fs::path elsewhere(const std::string& name = "other") const { return tiny_.folder() / name; }
  [[nodiscard]] static std::string log_of(const fs::path& run) { return read_file(run / "log.txt"); }
  [[nodiscard]] static int64_t newest(const fs::path& run) {
    const auto steps = CheckpointStore(run / "checkpoints", 1).list();
    return steps.empty() ? 0 : steps.back();
  }

  /// Warm-up over 4 steps to 3e-3, then half a cosine to a tenth at `total`.
  static double closed_form(int64_t step, int64_t total) {
    const double s = static_cast<double>(step);
    if (step < 4) return 3e-3 * s / 4;
    return 3e-4 + (3e-3 - 3e-4) * 0.5 * (1 + std::cos(std::numbers::pi * (s - 4) / static_cast<double>(total - 4)));
  }
  /// Every step once, in order, with the learning rate of the schedule.
  static void expect_metrics(const fs::path& run, int64_t steps, int64_t total) {
    const auto lines = steps_in(run / "metrics.jsonl");
    ASSERT_EQ(static_cast<int64_t>(lines.size()), steps);
    for (int64_t i = 0; i < steps; ++i) {
      const Json& line = lines[static_cast<size_t>(i)];
      EXPECT_EQ(line["step"], i + 1);
      EXPECT_NEAR(line["lr"].get<double>(), closed_form(i, total), 1e-12 * 3e-3) << "step " << i + 1;
      EXPECT_EQ(line["tokens"], (i + 1) * 64);
    }
  }

  TinyRun tiny_;
};

}  // namespace mythos::testing
