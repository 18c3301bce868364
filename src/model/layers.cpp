#include "model/layers.h"

#include "kernels/absorbed_attention.h"
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

// Rows of a batch that stand at different places attend one by one; what is around attention runs for all together.
template <class Attend>
static at::Tensor by_place(const std::vector<Place>& places, int64_t batch, const Attend& attend) {
  if (places.size() == 1) return attend(0, batch, places.front());
  TORCH_CHECK(static_cast<int64_t>(places.size()) == batch, places.size(), " places for ", batch, " rows");
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < places.size(); ++i) rows.push_back(attend(static_cast<int64_t>(i), 1, places[i]));
  return at::cat(rows);
}

at::Tensor Attention::mla_cached(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& key,
                                 const Place& place) const {
  const auto kept = place.cache->append(latent, rotate(key.unsqueeze(2), place.positions).squeeze(2));
  if (!at::GradMode::is_enabled() && absorbing_pays(q_up.size(1), kv_rank_, sizes_)) {
    return absorbed_attention(q_up, kept.first, kv_up_.value, kept.second, place.positions, sizes_);
  }
  return mla_attention(q_up, linear(kept.first, kv_up_), kept.second, place.positions, sizes_);
}

at::Tensor Attention::mla(const at::Tensor& x, const std::vector<Place>& places) const {
  const auto parts = linear(x, down_).split_with_sizes({q_rank_, kv_rank_, sizes_.rope}, -1);
  const at::Tensor query = rms_norm(parts[0], q_norm_);
  const at::Tensor latent = rms_norm(parts[1], kv_norm_);
  if (places.front().cache == nullptr) {
    const RotaryTable::Slice& positions = places.front().positions;
    const at::Tensor key = rotate(parts[2].unsqueeze(2), positions).squeeze(2);
    return linear(mla_projected_attention(query, q_up_, latent, kv_up_, key, positions, sizes_), wo_);
  }
  const at::Tensor q_up = linear(query, q_up_);
  return linear(by_place(places, x.size(0),
                         [&](int64_t row, int64_t n, const Place& place) {
                           return mla_cached(q_up.narrow(0, row, n), latent.narrow(0, row, n),
                                             parts[2].narrow(0, row, n), place);
                         }),
                wo_);
}

at::Tensor Attention::gqa_heads(const at::Tensor& qkv, const Place& place) const {
  const int64_t batch = qkv.size(0), t_count = qkv.size(1);
  const auto parts =
      qkv.view({batch, t_count, heads_ + 2 * kv_heads_, head_dim_}).split_with_sizes({heads_, kv_heads_, kv_heads_}, 2);
  const at::Tensor q = rotate(parts[0], place.positions);
  at::Tensor k = rotate(parts[1], place.positions);
  at::Tensor v = parts[2];
  if (place.cache != nullptr) {
    const auto kept = place.cache->append(k, v);
    k = kept.first;
    v = kept.second;
  }
  return causal_attention(q, k, v).reshape({batch, t_count, heads_ * head_dim_});
}

at::Tensor Attention::gqa(const at::Tensor& x, const std::vector<Place>& places) const {
  const at::Tensor qkv = linear(x, qkv_);
  return linear(
      by_place(places, x.size(0),
               [&](int64_t row, int64_t n, const Place& place) { return gqa_heads(qkv.narrow(0, row, n), place); }),
      wo_);
}

at::Tensor Attention::forward(const at::Tensor& x, const std::vector<Place>& places) const {
  return type_ == AttentionType::mla ? mla(x, places) : gqa(x, places);
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

at::Tensor MixtureOfExperts::forward(const at::Tensor& x, const at::Tensor& residual, at::Tensor* chosen) const {
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  const Routing routing = route(linear_wide(flat, router_), bias_, top_k_);
  if (chosen != nullptr) *chosen = routing.experts;
  std::vector<at::Tensor> addends;
  for (const auto& expert : shared_) addends.push_back(expert.forward(flat, Part::experts));
  addends.push_back(residual.reshape({-1, x.size(-1)}));
  return routed_experts(flat, gate_up_, down_, routing.experts, routing.weights, addends).view_as(x);
}

DenseBlock::DenseBlock(const ModelConfig& config, const ParameterStore& store, const std::string& prefix)
    : attn_norm_(store.leaf(prefix + "attn_norm.weight")),
      ffn_norm_(store.leaf(prefix + "ffn_norm.weight")),
      attn_(config, store, prefix + "attn."),
      ffn_(store, prefix + "ffn.") {}

at::Tensor DenseBlock::forward(const at::Tensor& x, const std::vector<Place>& places) const {
  const ResidualNorm h = residual_norm(x, attn_.forward(rms_norm(x, attn_norm_), places), ffn_norm_);
  return h.sum + ffn_.forward(h.y, Part::projections);
}

}  // namespace mythos
