// The looped block: one transformer block with experts run n times, a stable linear injection (Parcae's LTI update),
// depth-wise LoRA per loop, and adaptive computation time (Graves, 2016) weighing the loops' states.
#pragma once

#include "model/layers.h"

#include <functional>

namespace mythos {

/// What is kept of a loop for the backward pass.
enum class Recompute {
  none,  ///< everything autograd saves
  loop,  ///< the state h of each loop; the loop's block is run again in backward
};

/// What one loop did, for those who watch (evaluation, statistics, the golden check). Tensors are detached.
struct LoopReport {
  int64_t loop = 0;
  at::Tensor state;    ///< h after the update, [B, T, D]
  at::Tensor halt_p;   ///< halting probability, [B, T]
  at::Tensor weight;   ///< weight of this loop's state in the output, [B, T]
  at::Tensor experts;  ///< chosen experts, int64 [B*T, K]
};
using LoopObserver = std::function<void(const LoopReport&)>;

/// What ACT carries from loop to loop.
struct HaltingState {
  at::Tensor cumulative;  ///< [B, T], fp32 at least
  at::Tensor halted;      ///< bool [B, T]
};

/// One ACT step: from p [B, T] the weight of this loop's state; updates the state. Fields: w = p, or the remainder
/// max(0, 1 - cumulative) where cumulative + p >= threshold; 0 where halted before.
at::Tensor halting_weight(const at::Tensor& p, double threshold, HaltingState& state);

/// A = exp(-exp(clamp(log_dt + log_A, -16, 20))), in fp32 at least: 0 <= A < 1 always. (At -20, the reference's bound,
/// A would round to 1 in fp32.)
at::Tensor injection_decay(const at::Tensor& log_a, const at::Tensor& log_dt);

/// The loop signal: first D/8 channels [sin(t f) | cos(t f)], f_i = 10000^(-2i/(D/8)), zero elsewhere. [D].
at::Tensor loop_signal(int64_t t, int64_t dim, const at::TensorOptions& options);

class RecurrentBlock {
 public:
  RecurrentBlock(const ModelConfig& config, const ParameterStore& store, at::Tensor router_bias);

  /// e: the prelude's output, [B, T, D]. Returns the ACT-weighted sum of the loops' states. Stops early only where
  /// every position has halted and there is no cache: the result is the same.
  [[nodiscard]] at::Tensor forward(const at::Tensor& e, int64_t n_loops, const RotaryTable::Slice& positions,
                                   Recompute recompute, KvCache* cache, const LoopObserver* observer) const;

 private:
  [[nodiscard]] at::Tensor loop(const at::Tensor& h, const at::Tensor& e, int64_t t,
                                const RotaryTable::Slice& positions, CacheEntry* cache, at::Tensor* chosen) const;

  int64_t dim_, max_loops_;
  double threshold_;
  Weight norm_, attn_norm_, ffn_norm_, log_a_, log_dt_, b_, halt_, halt_bias_, lora_down_, lora_b_, lora_scale_;
  Attention attn_;
  MixtureOfExperts experts_;
};

}  // namespace mythos
