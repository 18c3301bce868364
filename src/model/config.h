// The numbers that define a model: the reference's own field names and its presets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

enum class AttentionType {
  mla,  ///< multi-head latent attention (DeepSeek-V2, 2024)
  gqa,  ///< grouped-query attention (Ainslie et al., 2023)
};

std::string_view to_string(AttentionType type);

struct ModelConfig {
  int64_t vocab_size = 32000;
  int64_t dim = 2048;
  int64_t n_heads = 16;
  int64_t n_kv_heads = 4;       ///< GQA only
  int64_t max_seq_len = 4096;   ///< longest sequence the rotary table covers
  int64_t max_loop_iters = 16;  ///< rows of the per-loop LoRA scale; the loops trained with
  int64_t prelude_layers = 2;
  int64_t coda_layers = 2;
  AttentionType attn_type = AttentionType::mla;
  int64_t kv_lora_rank = 512;  ///< MLA only, as are the next four
  int64_t q_lora_rank = 1536;
  int64_t qk_rope_head_dim = 64;
  int64_t qk_nope_head_dim = 128;
  int64_t v_head_dim = 128;
  int64_t n_experts = 64;
  int64_t n_shared_experts = 2;
  int64_t n_experts_per_tok = 4;
  int64_t expert_dim = 512;  ///< a shared expert is n_experts_per_tok times as wide
  double act_threshold = 0.99;
  double rope_theta = 500000.0;
  int64_t lora_rank = 16;
  int64_t max_output_tokens = 4096;  ///< kept for the reference's sake; nothing here depends on it
  double dropout = 0.0;              ///< only 0: pretraining here is without dropout

  [[nodiscard]] int64_t head_dim() const { return dim / n_heads; }  ///< GQA
  [[nodiscard]] int64_t qk_head_dim() const;                        ///< width of one q or k head
  [[nodiscard]] int64_t value_head_dim() const;                     ///< width of one v head
  [[nodiscard]] int64_t rotary_dim() const;                         ///< rotated part of a head
  [[nodiscard]] int64_t dense_dim() const { return dim * 4 / 3; }   ///< SwiGLU of prelude and coda
  [[nodiscard]] int64_t shared_dim() const { return expert_dim * n_experts_per_tok; }
  [[nodiscard]] int64_t loop_dim() const { return dim / 8; }  ///< channels of the loop signal

  bool operator==(const ModelConfig&) const = default;
};

/// "mythos_300m", "mythos_1b", ... in order of size.
const std::vector<std::string>& preset_names();
/// A preset by name ("mythos_1b" or "1b"). Throws usage Error naming the nearest one.
ModelConfig preset(std::string_view name);

/// Everything that makes the model impossible, one sentence each naming the field; empty if there is nothing.
std::vector<std::string> problems(const ModelConfig& config);

/// Which buffer a parameter lives in: one flat buffer per unit.
struct ParameterSpec {
  std::string name;  ///< the reference's name
  std::vector<int64_t> shape;
  int64_t unit = 0;  ///< 0: embedding and final norm; then prelude blocks, the recurrent block, coda blocks
  [[nodiscard]] int64_t numel() const;
};

/// All parameters in the reference's order (embedding once, no head, no buffers): its optimizer indexes them like this.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);
/// Buffers that a checkpoint holds beside the parameters (the router bias).
std::vector<ParameterSpec> buffer_specs(const ModelConfig& config);
int64_t unit_count(const ModelConfig& config);
/// "embedding", "prelude.0", "recurrent", "coda.1"
std::string unit_name(const ModelConfig& config, int64_t unit);

/// Exact number of parameters, the tied embedding once. Cheap for every preset.
int64_t parameter_count(const ModelConfig& config);

}  // namespace mythos
