// Going on from a checkpoint: what is taken from it, and what is said, to be compared with what came before.
#pragma once

#include "checkpoint/checkpoint.h"
#include "dist/sharding.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "train/run.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// The ids of a step's rows, in the order of the data, as 16 hexadecimal digits: the same rows give the same digits
/// however they are dealt to micro-batches and ranks.
class BatchHash {
 public:
  void add(std::span<const int32_t> row);
  [[nodiscard]] std::string text() const { return text_of(rows_); }
  /// Of all ranks' rows, of which each has every size-th. All ranks call it.
  [[nodiscard]] std::string text(Communicator& world) const;

 private:
  static std::string text_of(const std::vector<int64_t>& rows);
  std::vector<int64_t> rows_;  // a hash of each
};

/// Euclidean norms, summed in fp64.
struct StateNorms {
  double weights = 0;
  double first_moments = 0;
  double second_moments = 0;
};
StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer, Sharding* sharding = nullptr);

/// The weights that step 0 has: fresh ones of the run's seed, or those of the checkpoint `from`.
void begin_weights(const Run& run, const std::filesystem::path& from, Model& model);
/// Weights, moments and the optimizer's count of steps.
void load_training_state(const Checkpoint& checkpoint, Model& model, AdamW& optimizer);
/// Writes down what load_training_state needs of the optimizer beside its moments.
void note_updates(const AdamW& optimizer, Json& state);
/// A checkpoint's description as far as it is the same at every step of the run.
CheckpointMeta checkpoint_meta(const Run& run);
/// From which checkpoint and where in the run, with `norms` to compare.
void say_going_on(const Run& run, int64_t tokens, const StateNorms& norms);
/// Warns where the run began with another number of threads than it goes on with.
void warn_of_other_threads(const Run& run, const CheckpointMeta& meta);

}  // namespace mythos
