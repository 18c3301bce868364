// One file of weights, with or without the optimizer's moments: opening, checking, saving and exporting.
#pragma once

#include "base/json.h"
#include "base/safetensors.h"
#include "checkpoint/checked_file.h"
#include "checkpoint/meta.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// A checkpoint or a file of weights, mapped. What open() returns has a header that matches its checksum and exactly
/// the tensors, shapes and dtypes of its model; their bytes are checked by verify().
struct Checkpoint {
  CheckpointMeta meta;
  SafetensorsFile file;
  bool has_optimizer = false;                  ///< a training checkpoint
  std::shared_ptr<const void> copy = nullptr;  ///< keeps a temporary copy of what lies elsewhere

  /// Throws FormatError for a damaged file or one of another kind, Error for one of another version. `shown`: what
  /// messages call a file that is a copy of another.
  static Checkpoint open(const std::filesystem::path& path, const std::filesystem::path& shown = {});
  /// Reads everything from the disk and checks it. Throws FormatError naming the tensor.
  void verify(int threads = 2) const;

  /// F32 numbers of a parameter or buffer by its bare name. Throws FormatError if it is not there.
  [[nodiscard]] std::span<const std::byte> weights(std::string_view name) const;
  /// F32 numbers of a parameter's moments. Throws FormatError if they are not there.
  [[nodiscard]] std::span<const std::byte> exp_avg(std::string_view name) const;
  [[nodiscard]] std::span<const std::byte> exp_avg_sq(std::string_view name) const;

  [[nodiscard]] const std::filesystem::path& path() const { return file.path(); }
};

/// Writes a training checkpoint that is whole or absent. `tensors` must be those of checkpoint_tensors(meta.model), in
/// that order. Throws Error and leaves what was at `path` if a number is not finite or the disk refuses.
void save_checkpoint(const std::filesystem::path& path, const CheckpointMeta& meta,
                     std::span<const TensorBytes> tensors);
/// The same to any place.
void save_checkpoint(const CheckedPlace& place, const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                     const WriteOptions& options = {});

/// Where the tensors of checkpoint_tensors(meta.model) lie in the file that save_checkpoint writes.
struct CheckpointParts {
  uint64_t bytes = 0;  ///< of the whole file
  std::vector<uint64_t> offsets;
};
CheckpointParts checkpoint_parts(const CheckpointMeta& meta);

/// Verifies the checkpoint and writes its weights under their bare names (weight_tensors(meta.model)), replacing what
/// is at `path`.
void write_weights_only(const Checkpoint& checkpoint, const std::filesystem::path& path);

/// Throws Error naming the first differences if the checkpoint holds another model than `model`.
void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model);

/// Whether a file holds the head beside the embedding it is tied to: false without one, true if both are equal byte for
/// byte. Throws FormatError if they differ: such a model cannot be run with tied weights.
bool has_tied_head(const SafetensorsFile& file, std::string_view prefix = "");

/// What is in any safetensors or .pt file, without reading the tensors: path, kind ("checkpoint", "weights", "golden",
/// "safetensors", "pt"), bytes, header_bytes, tensors, parameters, dtypes, then for our own step, tokens, tokenizer,
/// seed, program, libtorch, host, device, created, model, data, state, config; for others their metadata; and the table
/// of tensors. Throws as SafetensorsFile and Checkpoint do.
Json describe(const std::filesystem::path& path);

}  // namespace mythos
