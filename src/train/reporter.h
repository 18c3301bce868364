// Everything a run writes down about itself while it trains: log lines, metrics.jsonl, history.jsonl, TensorBoard
// events, status.json.
#pragma once

#include "infer/evaluate.h"
#include "report/events.h"
#include "step/train_step.h"
#include "train/gpu_sensors.h"
#include "train/history.h"
#include "train/metrics.h"
#include "train/run.h"
#include "train/status.h"

#include <atomic>
#include <chrono>
#include <memory>

namespace mythos {

class Reporter {
 public:
  /// `last_step`: the step that the run goes on from; what was written down of later ones is taken back.
  /// `from`: the checkpoint, empty if there is none. From now on every warning of the log is in the history, too.
  Reporter(const Run& run, int64_t last_step, const std::filesystem::path& from);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  /// A step that is done: `step` is of this step alone and took `seconds`. It is in the files when this returns.
  void step(const StepMetrics& step, double seconds);
  /// A step that was left out, the `count`-th: it would have been `step`. `several`: of ranks.
  void skipped(int64_t step, const StepResult& result, bool several, int64_t count);
  /// The line of the log, with speeds since the last one.
  void log_line(const StepMetrics& window);
  void held_out(int64_t step, const Evaluation& evaluation);
  /// [{"prompt": .., "text": ..}, ..]
  void samples(int64_t step, const Json& samples);
  /// The newest checkpoint that is known to be whole.
  void checkpoint(int64_t step, const std::filesystem::path& path);
  /// Takes back what was written down of steps after `last_step`.
  void going_back_to(int64_t last_step);
  /// "finished", "stopped" or "failed", and why.
  void ended(const std::string& state, const std::string& message);

 private:
  void write_status_now();

  const Run& run_;
  History history_;  // looks at the metrics before they are cut back
  std::atomic<int64_t> last_step_;
  MetricsFile metrics_;
  std::unique_ptr<EventWriter> events_;  // none where they cannot be written
  std::unique_ptr<GpuSensors> sensors_;  // none on the CPU
  RunStatus status_;
  std::chrono::steady_clock::time_point status_written_;
};

}  // namespace mythos
