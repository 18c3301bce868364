// Which tensors a file of ours holds, in which order, and how large it is: known before anything exists.
#pragma once

#include "base/safetensors.h"
#include "model/config.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

inline constexpr std::string_view model_prefix = "model.";
inline constexpr std::string_view exp_avg_prefix = "optimizer.exp_avg.";
inline constexpr std::string_view exp_avg_sq_prefix = "optimizer.exp_avg_sq.";

/// The tensors of a training checkpoint, all F32: parameters and buffers under "model.", then both moments of every
/// parameter. Cheap for every preset.
std::vector<TensorInfo> checkpoint_tensors(const ModelConfig& model);
/// The tensors of a file of weights alone: parameters and buffers under their bare names.
std::vector<TensorInfo> weight_tensors(const ModelConfig& model);

/// Bytes of length and header of a checked file (checkpoint/checked_file.h): the tensor table and its checksums, at
/// least 128 KiB for other metadata, and so many that the data begins at a multiple of 64 KiB.
uint64_t checked_header_bytes(std::span<const TensorInfo> tensors);
/// Exact size of a checked file with these tensors.
int64_t checked_file_bytes(std::span<const TensorInfo> tensors);
/// Exact size of a training checkpoint.
int64_t checkpoint_bytes(const ModelConfig& model);

/// So many good ones stay at the least, whatever keep_last says: the newest, and one in case it turns out to be bad.
inline constexpr int64_t least_kept = 2;

/// The most checkpoints that are on the disk at once in a run of `steps` steps that saves every `every` of them and at
/// the end, the one being written included. keep_every 0: no milestones.
int64_t checkpoints_at_once(int64_t keep_last, int64_t keep_every, int64_t every, int64_t steps);

}  // namespace mythos
