// Counting what the looped block does, in training and in evaluation.
#pragma once

#include "dist/communicator.h"
#include "infer/loop_summary.h"
#include "model/recurrent.h"

namespace mythos {

/// Watches forward passes by their LoopReports and changes nothing in them: what is computed with it is bit for bit
/// what is computed without. Counts stay on the device until read(): nobody waits for it before.
class LoopStatistics {
 public:
  /// `loops`: the most that will be seen. Up to so many what is counted stays where it is in memory from the first pass
  /// on, so that passes may be captured and replayed (step/step_graph.h).
  LoopStatistics(int64_t n_experts, double act_threshold, int64_t loops = 1);
  LoopStatistics(const LoopStatistics&) = delete;
  LoopStatistics& operator=(const LoopStatistics&) = delete;

  /// Forgets what was seen.
  void begin();
  /// For ForwardOptions::observer.
  [[nodiscard]] const LoopObserver& observer() const { return observer_; }
  /// Of the first `n_loops` loops of all forward passes since begin(), each of so many loops at least (or fewer where
  /// all positions had halted). All of it is empty where nothing was seen.
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
  int64_t loops_;
  LoopObserver observer_;
  // int64 [loops + 1, n_experts + 1] on the passes' device: by loop choices of each expert, and positions that have not
  // halted after it; the last row's last number: positions.
  at::Tensor counts_;
  at::Tensor cumulative_, halted_;  // of the forward pass that is on
};

}  // namespace mythos
