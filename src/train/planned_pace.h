// The pace that a run was planned with, and whether it keeps it.
#pragma once

#include "base/json.h"
#include "model/recurrent.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mythos {

struct PlannedPace {
  double tokens_per_second = 0;  ///< 0: not known yet
  int64_t micro_batch = 0;
  Recompute recompute = Recompute::none;
  std::string source;  ///< "measured before the run", "this run's first steps"
};
/// For a checkpoint's state. Nothing for JSON of another shape.
Json to_json(const PlannedPace& pace);
std::optional<PlannedPace> planned_pace_from(const Json& json);

/// Compares windows of steps with the plan and says once where two in a row are off by more than 15%, and why.
class PaceWatch {
 public:
  static constexpr double tolerance = 0.15;

  /// `planned.tokens_per_second` 0: the first window that is long enough is the plan. `micro_batch` and `recompute` are
  /// what the run has now. A window is looked at when it has `least_steps`: many where steps differ in their work.
  PaceWatch(PlannedPace planned, int64_t micro_batch, Recompute recompute, int64_t least_steps);

  /// `steps` more at a rate, with a share of their time spent waiting for data.
  std::optional<std::string> add(int64_t steps, double tokens_per_second, double data_wait);
  [[nodiscard]] const PlannedPace& planned() const { return planned_; }

 private:
  [[nodiscard]] std::string cause(double ratio, double waited_share) const;

  PlannedPace planned_;
  int64_t micro_batch_;
  Recompute recompute_;
  int64_t least_steps_;
  int64_t steps_ = 0;
  double time_ = 0, waited_ = 0;  // in units of a step at one token a second
  int off_ = 0;                   // windows in a row: above 0 slower, below 0 faster
  bool said_ = false;
};

}  // namespace mythos
