// The blocks of the model: attention, feed-forward, mixture of experts. Each holds its weights and nothing else.
#pragma once

#include "kernels/attention.h"
#include "kernels/moe.h"
#include "kernels/part.h"
#include "model/cache.h"
#include "model/parameters.h"

namespace mythos {

/// Attention of one block: MLA or GQA by the configuration.
class Attention {
 public:
  Attention(const ModelConfig& config, const ParameterStore& store, const std::string& prefix);
  /// x: [B, T, D] -> [B, T, D]. `cache` may be null; `positions` are the rotary rows of x's positions.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const;

 private:
  [[nodiscard]] at::Tensor mla(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const;
  [[nodiscard]] at::Tensor gqa(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const;

  AttentionType type_;
  int64_t heads_, kv_heads_, head_dim_, q_rank_, kv_rank_;
  MlaHeads sizes_;
  Weight down_, q_up_, kv_up_, q_norm_, kv_norm_, qkv_, wo_;
};

/// down(silu(gate(x)) * up(x))
class FeedForward {
 public:
  FeedForward(const ParameterStore& store, const std::string& prefix);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, Part part) const;

 private:
  Weight gate_up_, down_;
};

class MixtureOfExperts {
 public:
  MixtureOfExperts(const ModelConfig& config, const ParameterStore& store, const std::string& prefix, at::Tensor bias);
  /// x: [B, T, D] -> [B, T, D]. `chosen` (may be null) receives the experts, int64 [B*T, K].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, at::Tensor* chosen) const;

 private:
  int64_t top_k_;
  Weight router_, gate_up_, down_;
  at::Tensor bias_;
  std::vector<FeedForward> shared_;
};

/// x += attn(rmsnorm(x)); x += ffn(rmsnorm(x)), with a dense feed-forward (prelude and coda).
class DenseBlock {
 public:
  DenseBlock(const ModelConfig& config, const ParameterStore& store, const std::string& prefix);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const;

 private:
  Weight attn_norm_, ffn_norm_;
  Attention attn_;
  FeedForward ffn_;
};

}  // namespace mythos
