#include "plan/memory.h"

#include "base/units.h"
#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>

namespace mythos {
namespace {

// Values kept per token by each part, counted from what the ops save for their backward pass.
int64_t attention_values(const ModelConfig& c) {
  if (c.attn_type == AttentionType::mla) {
    const int64_t width = c.qk_head_dim();
    const int64_t padded = std::max(c.v_head_dim, width);
    return 2 * c.dim + 3 * (c.q_lora_rank + c.kv_lora_rank) + c.qk_rope_head_dim +
           c.n_heads * (2 * width + 2 * padded + c.v_head_dim + 1);
  }
  return 2 * c.dim + (3 * c.n_heads + 2 * c.n_kv_heads) * c.head_dim() + c.n_heads;
}
int64_t feed_forward_values(int64_t width) { return 3 * width; }
int64_t dense_block_values(const ModelConfig& c) {
  return attention_values(c) + 2 * c.dim + feed_forward_values(c.dense_dim());
}
int64_t loop_values(const ModelConfig& c) {
  return attention_values(c) + 8 * c.dim + 2 * c.n_experts + c.n_experts_per_tok * (2 * c.expert_dim + 4) +
         c.n_shared_experts * feed_forward_values(c.shared_dim()) + 2 * c.lora_rank;
}
// Gradients and temporaries alive at once inside one loop's backward pass.
int64_t working_values(const ModelConfig& c) {
  return 4 * c.dim + c.n_heads * 4 * c.qk_head_dim() + c.n_experts_per_tok * (2 * c.dim + 4 * c.expert_dim) +
         c.n_shared_experts * 3 * c.shared_dim();
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& c, int64_t micro_batch, int64_t seq_len, int64_t loops, Recompute recompute,
                       int64_t element) {
  MemoryPlan plan;
  const int64_t parameters = parameter_count(c);
  const int64_t tokens = micro_batch * seq_len;
  plan.weights = parameters * (element == 4 ? 4 : 4 + element);
  plan.gradients = parameters * (element == 4 ? 4 : 4 + element);
  plan.moments = parameters * 8;
  int64_t values = (c.prelude_layers + c.coda_layers) * dense_block_values(c) + 4 * c.dim;
  if (recompute == Recompute::none) {
    values += loops * (loop_values(c) + 2 * c.dim);
  } else {
    values += loops * 2 * c.dim + loop_values(c);
  }
  plan.activations = tokens * (values + working_values(c)) * element;
  const int64_t rows = cross_entropy_chunk_rows(c.vocab_size, tokens);
  plan.loss_chunk = (rows * c.vocab_size + tokens * c.dim) * element;
  plan.program = int64_t{250} << 20;
  return plan;
}

std::string memory_text(const MemoryPlan& p, int64_t available) {
  const auto line = [](const char* what, int64_t bytes) {
    return fmt::format("  {:<34} {:>9}\n", what, bytes_text(static_cast<double>(bytes)));
  };
  std::string text = "memory, predicted\n";
  text += line("weights", p.weights);
  text += line("gradients", p.gradients);
  text += line("optimizer moments", p.moments);
  text += line("activations", p.activations);
  text += line("logits chunk and its gradient", p.loss_chunk);
  text += line("program and libraries", p.program);
  text += fmt::format("  {:<34} {:>9} of {} available", "together", bytes_text(static_cast<double>(p.total())),
                      bytes_text(static_cast<double>(available)));
  return text;
}

}  // namespace mythos
