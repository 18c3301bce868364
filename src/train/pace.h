// Time, speed and cost of a run over all its starts.
#pragma once

#include "train/metrics.h"

#include <cstdint>
#include <optional>
#include <string>

namespace mythos {

struct PaceOptions {
  int64_t steps = 0;            ///< the run's length
  int64_t tokens_per_step = 0;  ///< of all ranks
  double flops_per_token = 0;   ///< of training
  double peak_flops = 0;        ///< FLOP/s that an MFU of 1 stands for
  double price_per_hour = 0;    ///< 0: unknown
  double max_hours = 0;         ///< 0: no limit
  double budget = 0;            ///< in the price's currency; 0: no limit
};

class Pace {
 public:
  explicit Pace(PaceOptions options) : options_(options) {}

  /// Seconds of training that earlier starts of the run took.
  void restore(double seconds) { before_ = seconds; }
  /// A step that was done took `seconds`, of which `wait` for data.
  void step(double seconds, double wait);
  /// Time in which nothing was learnt: a step that was left out.
  void lost(double seconds) { lost_ += seconds; }
  /// Speed, memory, eta and cost after step `done`: of the last step alone, or of those since the last window.
  void fill_last(StepMetrics& metrics, int64_t done) const { fill(metrics, done, last_); }
  void fill_window(StepMetrics& metrics, int64_t done);
  /// Begins a new window, for a run that goes back.
  void forget_window() { window_ = {}; }

  /// Of all starts.
  [[nodiscard]] double seconds() const { return before_ + trained_.seconds + lost_; }
  /// Expected for the steps after `done`; nothing before the first step of this start.
  [[nodiscard]] std::optional<double> seconds_left(int64_t done) const;
  /// Which of the limits is reached, in words; empty: none.
  [[nodiscard]] std::string limit_reached() const;

 private:
  struct Span {
    double seconds = 0, wait = 0;
    int64_t steps = 0;
  };
  void fill(StepMetrics& metrics, int64_t done, const Span& span) const;

  PaceOptions options_;
  double before_ = 0, lost_ = 0;
  Span last_, window_, trained_;
};

}  // namespace mythos
