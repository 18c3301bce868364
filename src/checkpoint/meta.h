// What a checkpoint says about itself beside its tensors. docs/formats.md lists the keys.
#pragma once

#include "base/json.h"
#include "base/safetensors.h"
#include "model/config.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// A training checkpoint: weights and both moments.
inline constexpr std::string_view checkpoint_format = "mythos.checkpoint.1";
/// Weights alone, under their bare names.
inline constexpr std::string_view weights_format = "mythos.weights.1";

struct CheckpointMeta {
  int64_t step = 0;    ///< optimizer steps done
  int64_t tokens = 0;  ///< tokens trained on
  ModelConfig model;
  std::string config;     ///< the resolved config as TOML
  std::string tokenizer;  ///< its fingerprint
  uint64_t seed = 0;
  Json data;   ///< where the data stands; null in a file of weights alone
  Json state;  ///< whatever else the trainer must know again; null in a file of weights alone
  std::string program;
  std::string libtorch;
  std::string host;
  std::string device;
  std::string created;  ///< UTC, "2026-05-24T19:58:10Z"; filled in when saving if empty
};

/// The metadata of a file, in order, beginning with the format.
SafetensorsMetadata to_metadata(const CheckpointMeta& meta, std::string_view format = checkpoint_format);
/// Reads metadata of either format. `where` names the file. Throws Error naming the key that is missing or wrong, and
/// for a format of another version.
CheckpointMeta to_checkpoint_meta(const std::map<std::string, std::string>& metadata, std::string_view where);

/// The model's fields by their names, and back. model_from_json throws Error on a missing, unknown or wrong field and
/// on a model that cannot be.
Json model_to_json(const ModelConfig& model);
ModelConfig model_from_json(const Json& json, std::string_view where);

/// Every field in which two models differ: "dim is 64 there, 128 here".
std::vector<std::string> differences(const ModelConfig& there, const ModelConfig& here);

/// Now, as in CheckpointMeta::created.
std::string utc_now();

}  // namespace mythos
