// Text that a model in training writes, to be looked at.
#pragma once

#include "base/json.h"
#include "train/run.h"

namespace mythos {

class Model;

/// [{"prompt": .., "text": ..}, ..] for log.prompts, each said in the log. The random numbers depend on seed and step
/// alone, and touch nothing of training. A stop that is asked for ends it after the prompt in work.
Json write_samples(Model& model, const Run& run, int64_t step);

}  // namespace mythos
