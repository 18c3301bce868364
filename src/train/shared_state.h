// What several ranks share out while they train, put together again for a checkpoint.
#pragma once

#include "base/safetensors.h"
#include "dist/sharding.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "train/run.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace mythos {

/// As the run's configuration says; null for a process by itself. All ranks call it.
std::unique_ptr<Sharding> sharding_of(const Run& run);

/// The tensors of a checkpoint, as training_tensors() gives them; of several ranks (`sharding` not null) on the first,
/// nothing elsewhere. All ranks call it.
std::vector<TensorBytes> whole_state(const Model& model, const AdamW& optimizer, Sharding* sharding,
                                     std::vector<at::Tensor>& copies);

/// Where all ranks stand in the data, from where each stands. All ranks call it.
Json position_of_all(Team& team, const Json& own);

/// The run's newest checkpoint as the first rank finds it, else `otherwise` if that is not empty. All ranks call it.
std::optional<Checkpoint> newest_of_all(const Run& run, const std::filesystem::path& otherwise);

}  // namespace mythos
