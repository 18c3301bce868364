// Between a model in memory and a checkpoint on disk.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <memory>
#include <vector>

namespace mythos {

/// The tensors of a training checkpoint in checkpoint_tensors' order, as bytes on the CPU; what is not fp32 on the CPU
/// is copied into `copies`, which must outlive the result.
std::vector<TensorBytes> training_tensors(const Model& model, const AdamW& optimizer, std::vector<at::Tensor>& copies);
/// The same from flat buffers of whole units, where values and moments are shared out; all of them count as copies.
struct WholeState {
  std::vector<at::Tensor> values, first_moments, second_moments;
};
std::vector<TensorBytes> training_tensors(const Model& model, const WholeState& state, std::vector<at::Tensor>& copies);

/// Copies weights and buffers into the model, as far as they are kept here. Throws Error if the checkpoint is of
/// another model.
void load_weights(const Checkpoint& checkpoint, Model& model);
/// Copies both moments, and how far each parameter's count of updates is behind. Throws Error if the checkpoint holds
/// none.
void load_moments(const Checkpoint& checkpoint, AdamW& optimizer);

/// Where a run keeps its checkpoints: what its note of places says (checkpoint/places.h), else RUN/checkpoints, else
/// the checkpoint.dir of RUN/config.toml, else RUN itself. A folder, or "s3://BUCKET/PREFIX".
std::filesystem::path checkpoints_of(const std::filesystem::path& run);
/// A file, or the newest good checkpoint of a run's folder or of a folder on S3 (nothing is changed there); every byte
/// verified. Of another program's file (.pt, or .safetensors: see checkpoint/model_state.h) a temporary copy as a
/// checkpoint. Throws usage Error where there is none.
Checkpoint open_checkpoint(const std::filesystem::path& path);

struct LoadedModel {
  CheckpointMeta meta;
  std::unique_ptr<Model> model;
};
/// A model for inference from what open_checkpoint takes: see inference_model().
LoadedModel load_model(const std::filesystem::path& path, at::Device device, at::ScalarType dtype);
/// The same for long rows of tokens, whose products would widen narrow weights again and again: on the CPU bfloat16
/// weights are rounded and kept in float, which gives the same numbers from twice the memory.
LoadedModel load_rounded_model(const std::filesystem::path& path, at::Device device, at::ScalarType dtype);

/// Throws usage Error if the model's vocabulary is not the tokenizer's: its ordinary tokens, or with the special ones.
void require_vocabulary(const Tokenizer& tokenizer, const ModelConfig& model, const std::string& where);

/// The tokenizer of a checkpoint: `given` if not empty, else the path in its config. Throws usage Error if its
/// fingerprint is not the checkpoint's, or where that is not known if the vocabularies differ.
Tokenizer load_tokenizer_of(const CheckpointMeta& meta, const std::string& given);

}  // namespace mythos
