#include "model/layers.h"

#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace mythos {

Attention::Attention(const ModelConfig& c, const ParameterStore& store, const std::string& prefix)
    : type_(c.attn_type),
      heads_(c.n_heads),
      kv_heads_(c.n_kv_heads),
      head_dim_(c.head_dim()),
      q_rank_(c.q_lora_rank),
      kv_rank_(c.kv_lora_rank),
      sizes_{c.n_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim},
      wo_(store.leaf(prefix + "wo.weight")) {
  if (type_ == AttentionType::gqa) {
    qkv_ = store.leaf(prefix + "qkv");
    return;
  }
  down_ = store.leaf(prefix + "down");
  q_up_ = store.leaf(prefix + "q_up");
  kv_up_ = store.leaf(prefix + "kv_up.weight");
  q_norm_ = store.leaf(prefix + "q_norm.weight");
  kv_norm_ = store.leaf(prefix + "kv_norm.weight");
}

at::Tensor Attention::mla(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const {
  const auto parts = linear(x, down_).split_with_sizes({q_rank_, kv_rank_, sizes_.rope}, -1);
  at::Tensor latent = parts[1];
  at::Tensor key = rotate(parts[2].unsqueeze(2), positions).squeeze(2);
  if (cache != nullptr) {
    const auto kept = cache->append(latent, key);
    latent = kept.first;
    key = kept.second;
  }
  return linear(mla_projected_attention(rms_norm(parts[0], q_norm_), q_up_, rms_norm(latent, kv_norm_), kv_up_, key,
                                        positions, sizes_),
                wo_);
}

at::Tensor Attention::gqa(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const {
  const int64_t batch = x.size(0);
  const int64_t t_count = x.size(1);
  const auto parts = linear(x, qkv_)
                         .view({batch, t_count, heads_ + 2 * kv_heads_, head_dim_})
                         .split_with_sizes({heads_, kv_heads_, kv_heads_}, 2);
  const at::Tensor q = rotate(parts[0], positions);
  at::Tensor k = rotate(parts[1], positions);
  at::Tensor v = parts[2];
  if (cache != nullptr) {
    const auto kept = cache->append(k, v);
    k = kept.first;
    v = kept.second;
  }
  return linear(causal_attention(q, k, v).reshape({batch, t_count, heads_ * head_dim_}), wo_);
}

at::Tensor Attention::forward(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const {
  return type_ == AttentionType::mla ? mla(x, positions, cache) : gqa(x, positions, cache);
}

FeedForward::FeedForward(const ParameterStore& store, const std::string& prefix)
    : gate_up_(store.leaf(prefix + "gate_up")), down_(store.leaf(prefix + "down.weight")) {}

at::Tensor FeedForward::forward(const at::Tensor& x, Part part) const { return feed_forward(x, gate_up_, down_, part); }

MixtureOfExperts::MixtureOfExperts(const ModelConfig& c, const ParameterStore& store, const std::string& prefix,
                                   at::Tensor bias)
    : top_k_(c.n_experts_per_tok),
      router_(store.leaf(prefix + "router.weight")),
      gate_up_(store.leaf(prefix + "routed.gate_up")),
      down_(store.leaf(prefix + "routed.down")),
      bias_(std::move(bias)) {
  for (int64_t e = 0; e < c.n_shared_experts; ++e) {
    shared_.emplace_back(store, fmt::format("{}shared_experts.{}.", prefix, e));
  }
}

at::Tensor MixtureOfExperts::forward(const at::Tensor& x, at::Tensor* chosen) const {
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  const Routing routing = route(linear(flat, router_), bias_, top_k_);
  if (chosen != nullptr) *chosen = routing.experts;
  at::Tensor out = routed_experts(flat, gate_up_, down_, routing.experts, routing.weights);
  for (const auto& expert : shared_) out = out + expert.forward(flat, Part::experts);
  return out.view_as(x);
}

DenseBlock::DenseBlock(const ModelConfig& config, const ParameterStore& store, const std::string& prefix)
    : attn_norm_(store.leaf(prefix + "attn_norm.weight")),
      ffn_norm_(store.leaf(prefix + "ffn_norm.weight")),
      attn_(config, store, prefix + "attn."),
      ffn_(store, prefix + "ffn.") {}

at::Tensor DenseBlock::forward(const at::Tensor& x, const RotaryTable::Slice& positions, CacheEntry* cache) const {
  const at::Tensor h = x + attn_.forward(rms_norm(x, attn_norm_), positions, cache);
  return h + ffn_.forward(rms_norm(h, ffn_norm_), Part::projections);
}

}  // namespace mythos
