// How a step is made of micro-batches, and how many steps a run has.
#pragma once

#include "config/run_config.h"

namespace mythos {

struct BatchPlan {
  int64_t micro_batch = 0;          ///< rows at once on each rank
  int64_t grad_accum = 0;           ///< micro-batches each rank adds up before a step
  int64_t global_batch_tokens = 0;  ///< tokens a step really takes, over all ranks
  int64_t steps = 0;                ///< 0: the configuration names no length

  [[nodiscard]] int64_t tokens() const { return global_batch_tokens * steps; }  ///< of the whole run
  bool operator==(const BatchPlan&) const = default;
};

/// With G = train.global_batch_tokens: grad_accum = max(1, G // (micro_batch * seq_len * ranks)), the real global batch
/// follows from it, steps = train.steps, or target_tokens // global batch. `micro_batch` is what "auto" was settled to,
/// or train.micro_batch. Throws usage Error for a micro_batch or a number of ranks below 1 or absurd, and for a target
/// smaller than one step.
BatchPlan batch_plan(const TrainSection& train, int64_t micro_batch, int64_t ranks = 1);

}  // namespace mythos
