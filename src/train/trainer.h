// The long run: steps, log, checkpoints, held-out loss, samples, and stopping well.
#pragma once

#include "train/run.h"

namespace mythos {

/// Trains a prepared run to its end. Returns 0, or 128 + n when signal n stopped it: the micro-step in work is
/// finished, the unfinished accumulation dropped, the last completed step saved. Throws Error if loss or gradient are
/// not finite (the weights of that step are not touched, the last checkpoint stays), or if the final state could not be
/// saved.
int train(Run& run);

/// `mythos train`: prepare_run and train; says so and returns 0 for a finished run.
int train(const TrainRequest& request);

}  // namespace mythos
