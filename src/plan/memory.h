// Where a training step's memory goes, predicted from the configuration.
#pragma once

#include "model/config.h"
#include "model/recurrent.h"

#include <array>
#include <cstdint>
#include <string>

namespace mythos {

struct MemoryPlan {
  int64_t weights = 0;  ///< bytes: master values, and compute copies where the dtypes differ
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t activations = 0;  ///< what is kept for the backward pass, at its most
  int64_t loss_chunk = 0;   ///< logits held at a time, and the gradient of the hidden states
  int64_t program = 0;      ///< the program, LibTorch and its scratch space
  int64_t snapshot = 0;     ///< the copy that checkpoints are written from; plan_memory leaves it 0

  [[nodiscard]] int64_t total() const {
    return weights + gradients + moments + activations + loss_chunk + program + snapshot;
  }
};

/// For one device that holds everything. `element`: bytes of a compute value (4 for fp32).
MemoryPlan plan_memory(const ModelConfig& config, int64_t micro_batch, int64_t seq_len, int64_t loops,
                       Recompute recompute, int64_t element = 4);

/// When a micro-step may need most; prelude, loop and coda are the model's parts.
enum class Phase { loop_forward, loss, coda_backward, loop_backward, prelude_backward };
inline constexpr size_t n_phases = 5;
/// Bytes of activations and logits at their most in each phase, by its number. The most of all is what plan_memory
/// calls activations and loss_chunk.
std::array<int64_t, n_phases> passing_memory(const ModelConfig& config, int64_t micro_batch, int64_t seq_len,
                                             int64_t loops, Recompute recompute, int64_t element = 4);

/// Bytes that keys and values of `positions` take while generating (model/cache.h): of every block, and of the
/// recurrent one for each loop. Exact from 64 positions on that come at once.
int64_t cache_bytes(const ModelConfig& config, int64_t positions, int64_t loops, int64_t element = 4);

/// Whether a step would leave a margin of what is available: 15%.
bool fits(const MemoryPlan& plan, int64_t available);
/// `none`, or `loop` where only that fits, or nothing does.
Recompute least_recompute(const ModelConfig& config, int64_t micro_batch, int64_t seq_len, int64_t loops,
                          int64_t element, int64_t available);

/// A table of a few lines, with the total against what is available.
std::string memory_text(const MemoryPlan& plan, int64_t available);
/// The same beside what a step was seen to take: the most bytes of tensors at a time, and of the process.
std::string measured_memory_text(const MemoryPlan& plan, int64_t tensors, int64_t resident, int64_t available);

}  // namespace mythos
