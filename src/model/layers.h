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
  /// x: [B, T, D] -> [B, T, D]. `places`: one that all rows share, or B with a cache each.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const std::vector<Place>& places) const;

 private:
  [[nodiscard]] at::Tensor mla(const at::Tensor& x, const std::vector<Place>& places) const;
  [[nodiscard]] at::Tensor mla_cached(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& key,
                                      const Place& place) const;
  [[nodiscard]] at::Tensor gqa(const at::Tensor& x, const std::vector<Place>& places) const;
  [[nodiscard]] at::Tensor gqa_heads(const at::Tensor& qkv, const Place& place) const;

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
  /// What the experts make of x [B, T, D], added to `residual` [B, T, D]. `chosen` (may be null) receives the experts,
  /// int64 [B*T, K].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, at::Tensor* chosen) const;

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
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const std::vector<Place>& places) const;

 private:
  Weight attn_norm_, ffn_norm_;
  Attention attn_;
  FeedForward ffn_;
};

}  // namespace mythos
