// The looped block: one transformer block with experts run n times, a stable linear injection (Parcae's LTI update),
// depth-wise LoRA per loop, and adaptive computation time (Graves, 2016) weighing the loops' states.
#pragma once

#include "kernels/loop.h"
#include "model/layers.h"
#include "model/recompute.h"
#include "model/unit_hooks.h"

#include <functional>

namespace mythos {

/// What one loop did, for those who watch (evaluation, statistics, the golden check). Tensors are detached.
struct LoopReport {
  int64_t loop = 0;
  at::Tensor state;    ///< h after the update, [B, T, D]
  at::Tensor halt_p;   ///< halting probability, [B, T]
  at::Tensor weight;   ///< weight of this loop's state in the output, [B, T]
  at::Tensor experts;  ///< chosen experts, int64 [B*T, K]
  /// The weighted sum of the states so far, [B, T, D], fp32 at least: in the model's type it is what forward() gives
  /// with this many loops.
  at::Tensor output;
};
using LoopObserver = std::function<void(const LoopReport&)>;

class RecurrentBlock {
 public:
  RecurrentBlock(const ModelConfig& config, const ParameterStore& store, at::Tensor router_bias);

  /// e: the prelude's output, [B, T, D]. Returns the ACT-weighted sum of the loops' states. Stops early only where
  /// every position has halted and there is no cache: the result is the same. `hooks` say whether that is so of all
  /// processes, and may be null.
  [[nodiscard]] at::Tensor forward(const at::Tensor& e, int64_t n_loops, const Places& places, Recompute recompute,
                                   const LoopObserver* observer, UnitHooks* hooks = nullptr);

  /// The same for one new token of each text, whose loops end when it halts: e [B, 1, D], a place with a cache for each
  /// row. The caches of the loops that a token does without get what the last one it ran put into its own, so that
  /// later tokens, which may run longer, find it there. `observer` sees the texts that still run.
  [[nodiscard]] at::Tensor adaptive(const at::Tensor& e, int64_t n_loops, const Places& places,
                                    const LoopObserver* observer);

 private:
  // What loop t makes of the state: the block's output u, and the low-rank update of it before its last product.
  [[nodiscard]] std::vector<at::Tensor> block(const at::Tensor& h, const at::Tensor& e, int64_t t,
                                              const std::vector<Place>& places, at::Tensor* chosen);

  int64_t max_loops_;
  double threshold_;
  Weight norm_, attn_norm_, ffn_norm_, lora_down_, lora_scale_;
  LoopWeights update_;
  LoopSignals signals_;
  Attention attn_;
  MixtureOfExperts experts_;
};

}  // namespace mythos
