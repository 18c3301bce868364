// The long run: steps, log, checkpoints, held-out loss, samples, and stopping well.
#pragma once

#include "train/run.h"

namespace mythos {

struct TrainResult {
  int exit_code = 0;  ///< 0, or 128 + n when signal n stopped the run
  bool finished = false;
  int64_t step = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double loss = 0;                   ///< of the last step; NaN if there was none
  std::filesystem::path run;         ///< its folder
  std::filesystem::path checkpoint;  ///< the newest one; empty if there is none
};
/// Keys: run, finished, step, steps, tokens, loss, checkpoint (the last two may be null).
Json to_json(const TrainResult& result);

/// Trains a prepared run to its end, or until a signal: then the micro-step in work is finished, the unfinished
/// accumulation dropped, the last completed step saved. train.max_hours and cost.budget end it with a checkpoint as
/// well. A step whose loss or gradient is not finite is left out, and after train.skip_limit in a row the run goes back
/// to its last checkpoint. Throws Error if that happens more than train.rollback_limit times, or if the final state
/// could not be saved. Of several ranks all call it and get the same result; the first logs, saves and evaluates.
TrainResult train(Run& run);

/// `mythos train`: prepare_run and train; says so for a finished run and changes nothing.
TrainResult train(const TrainRequest& request, const std::shared_ptr<Team>& team = std::make_shared<Team>());

}  // namespace mythos
