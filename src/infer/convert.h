// One file of a model made into another.
#pragma once

#include "checkpoint/model_state.h"

#include <filesystem>
#include <string>
#include <vector>

namespace mythos {

struct ConvertOptions {
  bool weights_only = false;   ///< leave the optimizer out
  bool both_heads = false;     ///< .safetensors: the reference's whole state_dict (see export_state_dict)
  bool force = false;          ///< replace what is there
  std::string tokenizer = {};  ///< of an exported folder; empty: the checkpoint's, if its file can be found
};

struct Conversion {
  std::string made;  ///< "a .pt file", "a checkpoint", "weights", "a folder of weights"
  bool has_optimizer = false;
  CheckpointMeta meta;
  std::vector<std::filesystem::path> files;  ///< what was written
};

/// Converts `in` (a .pt file, a checkpoint or weights of ours, another program's .safetensors with a config.json beside
/// it, or a run's folder) to `out`, which by its name is
/// - NAME.pt: as the reference writes it, with the optimizer if `in` has one;
/// - NAME.safetensors: from a .pt file everything it holds; from others the weights under the reference's names;
/// - a folder: model.safetensors, config.json and the tokenizer, for Python.
/// Everything is checked before anything is written, each file is whole or absent. Throws Error; usage Error where
/// something is there already and not `force`, and for a tokenizer that is not the model's.
Conversion convert(const std::filesystem::path& in, const std::filesystem::path& out, const ConvertOptions& options);

}  // namespace mythos
