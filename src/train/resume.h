// Going on from a checkpoint: what is taken from it, and what is said, to be compared with what came before.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/hasher.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "train/run.h"

#include <cstdint>
#include <span>
#include <string>

namespace mythos {

/// The ids of a step's rows, in the order in which they are trained on, as 16 hexadecimal digits: the same rows give
/// the same digits however they are dealt to micro-batches.
class BatchHash {
 public:
  void add(std::span<const int32_t> row) { hasher_.add(row.data(), row.size_bytes()); }
  [[nodiscard]] std::string text() const { return hash_text(hasher_.value()); }

 private:
  Hasher hasher_;
};

/// Euclidean norms, summed in fp64.
struct StateNorms {
  double weights = 0;
  double first_moments = 0;
  double second_moments = 0;
};
StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer);

/// The weights that step 0 has: fresh ones of the run's seed, or those of the checkpoint `from`.
void begin_weights(const Run& run, const std::filesystem::path& from, Model& model);
/// Weights, moments and the optimizer's count of steps.
void load_training_state(const Checkpoint& checkpoint, Model& model, AdamW& optimizer);
/// Writes down what load_training_state needs of the optimizer beside its moments.
void note_updates(const AdamW& optimizer, Json& state);
/// A checkpoint's description as far as it is the same at every step of the run.
CheckpointMeta checkpoint_meta(const Run& run);
/// Warns where the run began with another number of threads than it goes on with.
void warn_of_other_threads(const Run& run, const CheckpointMeta& meta);

}  // namespace mythos
