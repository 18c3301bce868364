// A model's weights, and where there are some the optimizer's moments, from whatever file they are in.
#pragma once

#include "base/json.h"
#include "base/safetensors.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/meta.h"
#include "checkpoint/pt_file.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct ModelState {
  CheckpointMeta meta;  ///< of a file of another program: see import_pt
  bool has_optimizer = false;
  /// All F32: those of checkpoint_tensors(meta.model), or weight_tensors(meta.model) without an optimizer, in order.
  std::vector<TensorBytes> tensors;
  std::shared_ptr<const void> source;  ///< what the bytes lie in
};

/// A file of ours, every byte verified.
ModelState state_of(Checkpoint checkpoint);

/// A .pt file as the reference writes it: `model` (its state_dict), `cfg`, `step`, `optimizer`, `vocab_size`; or a
/// state_dict alone beside a config.json. The rotary tables are left out, the head must be the embedding. Moments are
/// found by index, in the model's order; parameters that have none begin at zero. meta.config holds the model and what
/// the file says of its optimizer, meta.state "imported", "optimizer_steps" (the largest of the states' own steps) and
/// "optimizer_lags" (see lags_to_json). Every checksum is verified. Throws Error naming the file, and tensors that are
/// missing, unknown or of another shape with both shapes.
ModelState import_pt(const std::filesystem::path& path);

/// Weights of another program in a .safetensors file, under the reference's names. The model is told by the file's
/// metadata ("model") or by the config.json beside it. Throws as import_pt does.
ModelState import_safetensors(const std::filesystem::path& path);

/// Any of these by what is in the file.
ModelState read_model_state(const std::filesystem::path& path);

/// Whether a file is of this program: a checkpoint, or its weights.
bool is_own_file(const SafetensorsFile& file);
/// Whether a checkpoint came from another program: then nothing is known of its data and of most of its settings.
bool is_imported(const CheckpointMeta& meta);

/// The state as a checkpoint in a nameless temporary file, for everything that reads checkpoints.
Checkpoint as_checkpoint(const ModelState& state, const std::filesystem::path& shown);

/// A model from fields by their names: those left out have the reference's defaults. Throws Error naming a field that
/// is unknown or wrong.
ModelConfig model_from_fields(const Json& fields, std::string_view where);

/// How many updates fewer than the optimizer each parameter had, in runs of the reference's order: [first, count, lag].
/// Runs of lag 0 are left out.
Json lags_to_json(const std::vector<int64_t>& lags);
/// Back again for `parameters` of them. Throws Error naming `where` if it is something else.
std::vector<int64_t> lags_from_json(const Json& json, size_t parameters, std::string_view where);

/// Tensors of another program by name, and what becomes of them: F32 in the order of weight_tensors(model). What is not
/// F32 is converted into `copies`. Throws as import_pt does.
std::vector<TensorBytes> adopt_weights(std::map<std::string, TensorBytes> found, const ModelConfig& model,
                                       std::string_view where, std::deque<std::vector<std::byte>>& copies);
/// The bytes as F32, converted into `copies` if they are not. Throws Error for another kind of number.
std::span<const std::byte> as_f32(const TensorBytes& tensor, std::string_view where,
                                  std::deque<std::vector<std::byte>>& copies);

}  // namespace mythos
