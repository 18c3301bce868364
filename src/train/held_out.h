// The held-out loss of a model in training.
#pragma once

#include "infer/evaluate.h"
#include "train/run.h"

#include <optional>

namespace mythos {

/// Over the run's held-out documents, with the most loops that the run trains with, said in the log. Nothing where
/// there are none, where a stop is asked for, and where it fails (a warning): it never ends a run.
std::optional<Evaluation> measure_held_out(Model& model, Run& run, int64_t step);

}  // namespace mythos
