// The parts that prepare_run() is made of. Nothing outside this folder needs them.
#pragma once

#include "step/train_step.h"
#include "train/run.h"

namespace mythos {

/// train.device and train.dtype as they are here; usage Error for what is not there.
/// `local`: which of this machine's GPUs is this rank's.
at::Device choose_device(const std::string& name, int64_t local = 0);
at::ScalarType choose_dtype(const std::string& name, at::Device device);
/// [data] for the loader, with a door to its sources.
DataOptions data_options(const RunConfig& config);
/// The tokenizer that the configuration names; its vocabulary goes into both where they do not say one. Throws Error.
Tokenizer open_tokenizer(RunConfig& config, DataOptions& data);
/// The configuration as it is written down: addresses without user, password and what is behind a '?'.
RunConfig without_secrets(const RunConfig& config);
Schedule schedule_of(const TrainSection& train, int64_t steps);

struct BatchChoice {
  int64_t micro_batch = 1;
  Recompute recompute = Recompute::none;
  std::string why = "";          ///< where it was not the configuration's
  double tokens_per_second = 0;  ///< as it was measured; 0: it was not
};
/// What the configuration says; where it says "auto", what an earlier start decided, else what search_batch() finds.
BatchChoice choose_batch(const Run& run, int64_t available);

/// What changed since the checkpoint was written, by what it has a bearing on: nothing to say, a note, a refusal that
/// `force` overrules, or a usage Error for another model or tokenizer.
void compare_with_checkpoint(Run& run, bool force);

/// Locks those of the run's folders that exist and are not locked yet. Throws a refusal if another process holds one.
void lock_folders(Run& run);
/// Creates the run's folders and locks them, or takes over those that are there; with `fresh` they are set aside first.
void enter_folders(Run& run, bool fresh);

/// What train.cuda_graphs says.
inline Capture capture_of(const TrainSection& train) {
  return train.cuda_graphs ? Capture::when_possible : Capture::never;
}
/// After the first step: what it took of what was predicted, and how its work reached a GPU.
void say_how_it_went(const Run& run, const StepGraph& graph);
/// Prints device, model, data, batch, work, schedule, checkpoints and memory.
void say_what_was_decided(const Run& run, int64_t checkpoint_size, int64_t available);

}  // namespace mythos
