// What several ranks share out while they train, put together again for a checkpoint.
#pragma once

#include "base/safetensors.h"
#include "dist/sharding.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "train/run.h"
#include "train/saver.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace mythos {

/// As the run's configuration says; null for a process by itself. All ranks call it.
std::unique_ptr<Sharding> sharding_of(const Run& run);

/// Whether each rank writes its part of a checkpoint into one file: where they share the state out, and all see the
/// folder in which the first one makes files that are renamed. Otherwise the first gets everything and writes it. All
/// ranks call it; `sharding` null: false. Says what it found.
bool ranks_write_parts(const Run& run, const Sharding* sharding);

/// What this rank has to write of a checkpoint: of a process by itself and (`parts` false) of the first rank all
/// tensors, as training_tensors() gives them; else its share. Nothing on ranks that have nothing to write. All ranks
/// call it. Throws Error on the first where the file cannot be begun, and the others have nothing to write then.
TrainingState state_to_save(const Run& run, const CheckpointMeta& meta, const Model& model, const AdamW& optimizer,
                            Sharding* sharding, bool parts);

/// Where all ranks stand in the data, from where each stands. All ranks call it.
Json position_of_all(Team& team, const Json& own);

/// The run's newest checkpoint as the first rank finds it, else `otherwise` if that is not empty. All ranks call it.
std::optional<Checkpoint> newest_of_all(const Run& run, const std::filesystem::path& otherwise);

}  // namespace mythos
