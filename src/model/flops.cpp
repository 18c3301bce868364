#include "model/flops.h"

#include "base/error.h"

#include <string_view>

namespace mythos {

namespace {

// Multiply-adds of one token in a block's attention matrices.
double attention_matrices(const ModelConfig& c) {
  const auto d = static_cast<double>(c.dim);
  const auto heads = static_cast<double>(c.n_heads);
  if (c.attn_type == AttentionType::gqa) {
    const auto width = static_cast<double>(c.head_dim());
    return d * width * (2 * heads + 2 * static_cast<double>(c.n_kv_heads));
  }
  const auto q_rank = static_cast<double>(c.q_lora_rank);
  const auto kv_rank = static_cast<double>(c.kv_lora_rank);
  const auto rope = static_cast<double>(c.qk_rope_head_dim);
  const auto nope = static_cast<double>(c.qk_nope_head_dim);
  const auto value = static_cast<double>(c.v_head_dim);
  const double queries = d * q_rank + q_rank * heads * (nope + rope);
  const double keys_and_values = d * (kv_rank + rope) + kv_rank * heads * (nope + value);
  return queries + keys_and_values + heads * value * d;
}

// Multiply-adds of one token in the three matrices of a SwiGLU.
double swiglu(const ModelConfig& c, int64_t width) {
  return 3.0 * static_cast<double>(c.dim) * static_cast<double>(width);
}

// Multiply-adds of one token in one run of the recurrent block.
double one_loop(const ModelConfig& c) {
  const auto d = static_cast<double>(c.dim);
  const double experts = static_cast<double>(c.n_experts_per_tok) * swiglu(c, c.expert_dim) +
                         static_cast<double>(c.n_shared_experts) * swiglu(c, c.shared_dim());
  const double router = d * static_cast<double>(c.n_experts);
  const double adapter = 2 * d * static_cast<double>(c.lora_rank);
  return attention_matrices(c) + router + experts + adapter + d;  // the last is the halting head
}

}  // namespace

FlopsPerToken flops_per_token(const ModelConfig& c, int64_t seq_len, int64_t loops, int64_t without_gradient) {
  if (seq_len < 1 || loops < 1 || without_gradient < 0 || without_gradient > loops) {
    throw usage_error(fmt::format("no FLOPs for sequence length {}, {} loops, {} of them without gradient", seq_len,
                                  loops, without_gradient));
  }
  const auto dense = static_cast<double>(c.prelude_layers + c.coda_layers);
  const auto n = static_cast<double>(loops);
  const double keys = (static_cast<double>(seq_len) + 1) / 2;
  const double block_attention =
      2 * static_cast<double>(c.n_heads) * static_cast<double>(c.qk_head_dim() + c.value_head_dim()) * keys;

  FlopsPerToken f;
  f.head = 2 * static_cast<double>(c.vocab_size) * static_cast<double>(c.dim);
  f.dense_blocks = 2 * dense * (attention_matrices(c) + swiglu(c, c.dense_dim()));
  f.loops = 2 * n * one_loop(c);
  f.attention = (dense + n) * block_attention;
  f.forward = f.head + f.dense_blocks + f.loops + f.attention;
  const double forward_alone = static_cast<double>(without_gradient) * (2 * one_loop(c) + block_attention);
  f.train = 3 * f.forward - 2 * forward_alone;
  return f;
}

FlopsPerToken flops_per_token(const ModelConfig& config, int64_t seq_len, std::span<const int64_t> loops) {
  if (loops.empty()) throw usage_error("no FLOPs without a number of loops");
  FlopsPerToken mean;
  const double share = 1 / static_cast<double>(loops.size());
  for (const int64_t n : loops) {
    const FlopsPerToken one = flops_per_token(config, seq_len, n);
    mean.head += share * one.head;
    mean.dense_blocks += share * one.dense_blocks;
    mean.loops += share * one.loops;
    mean.attention += share * one.attention;
    mean.forward += share * one.forward;
    mean.train += share * one.train;
  }
  return mean;
}

ParametersByPart parameters_by_part(const ModelConfig& config) {
  ParametersByPart parts;
  for (const auto& spec : parameter_specs(config)) {
    const std::string_view name = spec.name;
    const int64_t n = spec.numel();
    const bool core = name.starts_with("recurrent.");
    if (name == "embed.weight") {
      parts.embedding += n;
    } else if (name == "norm.weight") {
      parts.final_norm += n;
    } else if (name.starts_with("prelude.")) {
      parts.prelude += n;
    } else if (name.starts_with("coda.")) {
      parts.coda += n;
    } else if (core && name.find(".attn.") != std::string_view::npos) {
      parts.recurrent_attention += n;
    } else if (core && name.find(".routed_experts.") != std::string_view::npos) {
      parts.recurrent_routed += n;
    } else if (core && name.find(".shared_experts.") != std::string_view::npos) {
      parts.recurrent_shared += n;
    } else {
      parts.recurrent_other += n;
    }
  }
  const int64_t one_expert = parts.recurrent_routed / config.n_experts;
  parts.active = parts.total() - one_expert * (config.n_experts - config.n_experts_per_tok);
  return parts;
}

}  // namespace mythos
