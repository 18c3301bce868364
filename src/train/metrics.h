// metrics.jsonl: one JSON object per line and step, whole or absent after a kill; and the log's line.
#pragma once

#include "base/append_file.h"
#include "base/json.h"
#include "config/batch_plan.h"
#include "infer/loop_summary.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mythos {

/// One step as it is logged.
struct StepMetrics {
  int64_t step = 0;  ///< from 1
  int64_t total = 0;
  double loss = 0;
  double gradient_norm = 0;
  double lr = 0;
  int64_t tokens = 0;  ///< since the run's beginning
  double tokens_per_second = 0;
  double mfu = 0;            ///< fraction of the measured (or listed) peak
  int64_t memory_bytes = 0;  ///< most so far
  double data_wait = 0;      ///< fraction of the time spent waiting for rows
  double eta_seconds = 0;
  double price_per_hour = 0;  ///< 0: unknown
  double hours_so_far = 0;
  int64_t loops = 0;
  std::string batch;                   ///< hash of its rows
  std::optional<LoopSummary> watched;  ///< of a step that is logged: experts and halting
};

/// "2026-05-24 19:58:10 | step    800/5744 | loss 4.0474 | ..." in local time, the same in every locale.
std::string log_line(const StepMetrics& metrics);
/// For a terminal while micro-batch `micro` of `step` is done: "step 801/5744 (3/85) | loss 4.0474 | 5,440 tok/s | 5d
/// 12h left". `last`: the step before.
std::string live_line(const StepMetrics& last, int64_t step, int64_t micro, const BatchPlan& batch,
                      std::optional<double> seconds_left);

class MetricsFile {
 public:
  /// Opens for appending. Lines of steps after `last_step` (of a run that went back to a checkpoint; 0: of one that
  /// begins, all lines) and a line that a kill cut off are dropped first, atomically.
  MetricsFile(std::filesystem::path path, int64_t last_step);
  /// Drops the lines of later steps, for a run that goes back in the middle.
  void forget_after(int64_t last_step);
  /// Appends one line, whole or not at all. A disk that refuses is a warning once, not the end of the run.
  void write(const Json& line);

 private:
  AppendFile file_;
  bool warned_ = false;
};

}  // namespace mythos
