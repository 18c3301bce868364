// What a model costs: floating-point operations per token and parameters, by part.
#pragma once

#include "model/config.h"

#include <cstdint>
#include <span>

namespace mythos {

/// Floating-point operations for one token of a sequence, two for each multiply-add. Matrix multiplies and attention
/// alone: norms, activations, rotary, softmax and the embedding's lookup are not counted.
struct FlopsPerToken {
  // One forward pass.
  double head = 0;          ///< the LM head, 2 * vocab_size * dim
  double dense_blocks = 0;  ///< all matrices of prelude and coda
  double loops = 0;  ///< all matrices a token meets in the recurrent block, over all loops: attention's, router, the
                     ///< chosen and the shared experts, per-loop adapter, halting
  double attention = 0;  ///< queries with keys and weights with values, over the causal half, in every block run
  double forward = 0;    ///< the four together

  double train = 0;  ///< forward and backward; the backward pass twice the forward, recomputation not counted
};

/// `seq_len`: tokens in a row, each of which sees (seq_len + 1) / 2 keys on average. `loops`: times the recurrent block
/// runs; of these the first `without_gradient` run forward alone and have no backward pass.
FlopsPerToken flops_per_token(const ModelConfig& config, int64_t seq_len, int64_t loops, int64_t without_gradient = 0);

/// The mean over loop counts that are drawn with equal chance (train.loops).
FlopsPerToken flops_per_token(const ModelConfig& config, int64_t seq_len, std::span<const int64_t> loops);

/// Parameters by part; together they are parameter_count(config).
struct ParametersByPart {
  int64_t embedding = 0;  ///< tied to the head: counted once
  int64_t prelude = 0;
  int64_t recurrent_attention = 0;
  int64_t recurrent_routed = 0;  ///< routed experts
  int64_t recurrent_shared = 0;  ///< shared experts
  int64_t recurrent_other = 0;   ///< router, adapter, injection, halting, norms
  int64_t coda = 0;
  int64_t final_norm = 0;

  int64_t active = 0;  ///< of all, those that one token meets: all but the routed experts that were not chosen

  [[nodiscard]] int64_t recurrent() const {
    return recurrent_attention + recurrent_routed + recurrent_shared + recurrent_other;
  }
  [[nodiscard]] int64_t total() const { return embedding + prelude + recurrent() + coda + final_norm; }
};
ParametersByPart parameters_by_part(const ModelConfig& config);

}  // namespace mythos
