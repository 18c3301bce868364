// Steps that went wrong: what to do about losses and gradients that are not finite, and losses that stand out.
#pragma once

#include "base/error.h"
#include "infer/loop_summary.h"
#include "model/model.h"
#include "train/metrics.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mythos {

enum class Verdict {
  good,
  skip,       ///< leave this step's data out and go on
  roll_back,  ///< too many in a row: back to the last checkpoint, past the data since
  give_up,    ///< that has been done too often
};

class Stability {
 public:
  /// `skip_limit`: steps in a row that are not finite before going back; `rollback_limit`: times of going back before
  /// giving up.
  Stability(int64_t skip_limit, int64_t rollback_limit) : skip_limit_(skip_limit), rollback_limit_(rollback_limit) {}

  /// Of a step whose loss or gradient norm was not finite.
  Verdict not_finite();
  /// Of a step that was done: where its loss lies more than 6 standard deviations above the average of about the last
  /// 50 (and there were 20), that average. A loss that stands out does not move the average much.
  std::optional<double> finite(double loss);

  /// Whether nearly all tokens go to the same `chosen` experts: less than a tenth of the entropy is left that choices
  /// can have above that. Only when it is new; once a fifth was back it may be said again.
  bool collapsed(const ExpertLoad& load, int64_t chosen);

  [[nodiscard]] int64_t in_row() const { return in_row_; }
  [[nodiscard]] int64_t skipped() const { return skipped_; }      ///< in all
  [[nodiscard]] int64_t rollbacks() const { return rollbacks_; }  ///< in all
  /// Of a run that goes on.
  void restore(int64_t skipped, int64_t rollbacks) {
    skipped_ = skipped;
    rollbacks_ = rollbacks;
  }

 private:
  int64_t skip_limit_, rollback_limit_;
  int64_t in_row_ = 0, skipped_ = 0, rollbacks_ = 0;
  int64_t seen_ = 0;
  int64_t in_row_high_ = 0;  // losses that stood out
  bool collapsed_ = false;
  double mean_ = 0, variance_ = 0, last_ = 0;
};

/// Warns of what does not stop a run and should not be missed: a loss that stands out, experts that collapse. `say`:
/// aloud, too. To be called after each step.
void look_for_trouble(Stability& stability, const StepMetrics& step, int64_t chosen_experts, bool say);

/// Where numbers stop being finite, in the order in which they are computed: a weight, the prelude, a loop, the coda;
/// else the first gradients. Runs the model once more on `ids` ([B, T]) without gradients. One or two sentences.
std::string first_not_finite(Model& model, const at::Tensor& ids, int64_t n_loops);
/// The run's end after Verdict::give_up. `checkpoint`: the last one, empty if there is none.
Error gave_up(int64_t step, int64_t rollbacks, const std::string& diagnosis, const std::filesystem::path& checkpoint);

}  // namespace mythos
