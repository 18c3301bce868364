// Small models for tests: every size differs from every other, weights large enough for every part to matter.
#pragma once

#include "model/model.h"

#include <memory>

namespace mythos::test {

inline ModelConfig small_config(AttentionType attention = AttentionType::mla) {
  ModelConfig c;
  c.vocab_size = 61;
  c.dim = 32;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.max_seq_len = 24;
  c.max_loop_iters = 4;
  c.prelude_layers = 1;
  c.coda_layers = 2;
  c.attn_type = attention;
  c.kv_lora_rank = 12;
  c.q_lora_rank = 20;
  c.qk_rope_head_dim = 6;
  c.qk_nope_head_dim = 10;
  c.v_head_dim = 13;
  c.n_experts = 5;
  c.n_shared_experts = 2;
  c.n_experts_per_tok = 2;
  c.expert_dim = 11;
  c.lora_rank = 3;
  c.rope_theta = 10000;
  return c;
}

inline at::Tensor named(const std::vector<NamedTensor>& all, std::string_view name) {
  for (const auto& n : all) {
    if (n.name == name) return n.tensor;
  }
  throw std::out_of_range(std::string(name));
}
inline at::Tensor value(const Model& model, std::string_view name) {
  return named(model.parameters().named_values(), name);
}

/// Fresh weights with matrices eight times larger (std 0.16), a router bias, and a halting head that neither stops at
/// once nor never.
inline std::unique_ptr<Model> small_model(const ModelConfig& config, at::ScalarType compute, at::ScalarType master,
                                          uint64_t seed = 5) {
  auto model = std::make_unique<Model>(config, at::kCPU, compute, master, true);
  initialize(model->parameters(), config, seed);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : model->parameters().named_values()) {
    if (tensor.dim() > 1) tensor.mul_(name == "embed.weight" ? 20 : 8);
    if (name.ends_with("halt.bias")) tensor.fill_(-1.5);
  }
  model->parameters().refresh_compute();
  const at::Tensor bias = model->named_buffers()[0].tensor;
  bias.copy_(at::linspace(-0.3, 0.3, bias.numel()));
  return model;
}
inline std::unique_ptr<Model> small_model(const ModelConfig& config, at::ScalarType type) {
  return small_model(config, type, type);
}

}  // namespace mythos::test
