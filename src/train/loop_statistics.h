// What the looped block did in a training step: which experts the tokens went to, and after how many loops they halted.
#pragma once

#include "base/json.h"
#include "dist/communicator.h"
#include "model/recurrent.h"

#include <cstdint>
#include <vector>

namespace mythos {

struct LoopSummary {
  std::vector<double> expert_share;    ///< of all choices of all loops, by expert; sums to 1
  std::vector<double> halted_by_loop;  ///< share of positions that have halted after 1, 2, ... loops
  double mean_loops = 0;               ///< until a position halts; one that never does counts all loops

  /// Choices of the busiest expert over the mean: 1 where all are equally busy.
  [[nodiscard]] double max_over_mean() const;
  /// Experts that no token chose.
  [[nodiscard]] int64_t unused() const;
};
/// {"share": [..], "max_over_mean": x, "unused": n}
Json experts_json(const LoopSummary& summary);
/// {"mean_loops": x, "halted_by_loop": [..]}
Json halting_json(const LoopSummary& summary);

/// Watches forward passes by their LoopReports and changes nothing in them: what is computed with it is bit for bit
/// what is computed without. Counts stay on the device until read(): nobody waits for it before.
class LoopStatistics {
 public:
  LoopStatistics(int64_t n_experts, double act_threshold);
  LoopStatistics(const LoopStatistics&) = delete;
  LoopStatistics& operator=(const LoopStatistics&) = delete;

  /// Forgets what was seen.
  void begin();
  /// For ForwardOptions::observer.
  [[nodiscard]] const LoopObserver& observer() const { return observer_; }
  /// Of all forward passes since begin(), each of `n_loops` loops (or fewer where all positions had halted).
  [[nodiscard]] LoopSummary read(int64_t n_loops) const {
    SingleProcess alone;
    return read(n_loops, alone);
  }
  /// Of all ranks together; all call it.
  [[nodiscard]] LoopSummary read(int64_t n_loops, Communicator& world) const;

 private:
  void see(const LoopReport& report);

  int64_t n_experts_;
  double threshold_;
  LoopObserver observer_;
  at::Tensor chosen_;                // int64 [n_experts]
  std::vector<at::Tensor> running_;  // by loop: positions that have not halted after it, int64 scalar
  at::Tensor cumulative_, halted_;   // of the forward pass that is on
  int64_t positions_ = 0;
};

}  // namespace mythos
