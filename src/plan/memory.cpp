#include "plan/memory.h"

#include "base/units.h"
#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>

namespace mythos {
namespace {

// Values of the compute type that one token takes, counted from what the ops keep for their backward pass (kernels/)
// and from what is alive inside it. An int64 counts as 8 bytes in `bytes`.
struct PerToken {
  int64_t values = 0;
  int64_t bytes = 0;
  PerToken& operator+=(const PerToken& o) {
    values += o.values;
    bytes += o.bytes;
    return *this;
  }
  [[nodiscard]] int64_t total(int64_t element) const { return values * element + bytes; }
};

// A model in bfloat16 trains on a GPU, whose ops (kernels/cuda) keep somewhat more.
bool on_gpu(int64_t element) { return element < 4; }

// From the block's normalised input to the output of attention.
int64_t attention_values(const ModelConfig& c, bool gpu) {
  const int64_t out = c.n_heads * c.value_head_dim();
  if (c.attn_type == AttentionType::mla) {
    // On the CPU the up-projections are made again in the backward pass. On a GPU they are kept, and the norms read
    // their inputs in the joined projection.
    const int64_t projected =
        gpu ? c.qk_rope_head_dim + c.n_heads * (c.qk_head_dim() + c.qk_nope_head_dim + c.v_head_dim) : 0;
    return c.dim + 2 * (c.q_lora_rank + c.kv_lora_rank) + 2 + c.qk_rope_head_dim + out + c.n_heads + projected;
  }
  const int64_t projected = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim();
  const int64_t rotated = (c.n_heads + c.n_kv_heads) * c.head_dim();
  return c.dim + projected + rotated + out + c.n_heads;
}
// Both norms' inputs, the second norm's output, and a number for each norm.
int64_t block_values(const ModelConfig& c, bool gpu) { return attention_values(c, gpu) + 3 * c.dim + 2; }

// Numbers by row and by head are fp32 in a bfloat16 model: as much again.
int64_t wide_rows(const ModelConfig& c, bool gpu) { return gpu ? 2 * (c.n_heads + 4) : 0; }

PerToken dense_block(const ModelConfig& c, bool gpu) {
  return {block_values(c, gpu) + 2 * c.dense_dim(), wide_rows(c, gpu)};
}

PerToken loop(const ModelConfig& c, bool gpu) {
  const int64_t k = c.n_experts_per_tok;
  PerToken kept{block_values(c, gpu), wide_rows(c, gpu)};
  kept.values += 2 * c.dim + 1;                            // the state before, the block's output, the loop's norm
  kept.values += 2 * k + 2 * k * c.expert_dim;             // routed: weights, joined projections
  kept.values += c.n_shared_experts * 2 * c.shared_dim();  // shared: joined projections
  kept.values += 2 * c.lora_rank + 8;                      // adapter, halting
  kept.bytes += 8 * (gpu ? 2 : 3) * k;                     // experts, tokens and places of the choices
  return kept;
}

// Gradients and temporaries alive inside the backward pass of a feed-forward network.
int64_t feed_forward_work(int64_t dim, int64_t width) { return 3 * dim + 4 * width; }
int64_t routed_work(const ModelConfig& c) { return c.n_experts_per_tok * (2 * c.dim + 4 * c.expert_dim) + 4 * c.dim; }

int64_t logits_bytes(const ModelConfig& c, int64_t tokens, int64_t element) {
  if (on_gpu(element)) {  // the logits, which become their gradient
    return cross_entropy_chunk_rows(c.vocab_size, tokens, at::kCUDA, element) * c.vocab_size * element;
  }
  const int64_t rows = cross_entropy_chunk_rows(c.vocab_size, tokens);
  const int64_t block_rows = cross_entropy_block(c.vocab_size);
  const int64_t blocks = (c.vocab_size + block_rows - 1) / block_rows;
  return rows * (c.vocab_size + 2 * blocks) * element;
}

}  // namespace

std::array<int64_t, n_phases> passing_memory(const ModelConfig& c, int64_t micro_batch, int64_t seq_len, int64_t loops,
                                             Recompute recompute, int64_t element) {
  const int64_t tokens = micro_batch * seq_len;
  const bool again = recompute == Recompute::loop;
  const int64_t state = c.dim * element;
  const bool gpu = on_gpu(element);
  const int64_t block = dense_block(c, gpu).total(element);
  const int64_t one_loop = loop(c, gpu).total(element);
  const int64_t prelude = c.prelude_layers * (again ? state : block);
  const int64_t coda = c.coda_layers * (again ? state : block);
  const int64_t looped = loops * (again ? state : one_loop);
  // ACT's sum, the final norm's input and output, the hidden gradient, e. On a GPU the sum is fp32, the one before and
  // the one that is made of it.
  const int64_t ends = 5 * state + (gpu ? 6 * c.dim : 0);
  const int64_t kept = prelude + looped + coda + ends;
  const int64_t dense_work = feed_forward_work(c.dim, c.dense_dim()) * element;
  // Shared experts come first in the backward pass and let go of what they kept before the routed ones work.
  const int64_t shared = c.n_shared_experts > 0 ? feed_forward_work(c.dim, c.shared_dim()) + c.dim : 0;
  const int64_t routed = routed_work(c) - c.n_shared_experts * 2 * c.shared_dim();
  const int64_t loop_work = std::max(shared, routed) * element;
  std::array<int64_t, n_phases> out{};
  const auto set = [&out](Phase phase, int64_t bytes) { out[static_cast<size_t>(phase)] = bytes; };
  set(Phase::loop_forward, tokens * (kept - coda + loop_work));
  set(Phase::loss, tokens * kept + logits_bytes(c, tokens, element));
  set(Phase::coda_backward, tokens * (kept + dense_work + (again && c.coda_layers > 0 ? block : 0)));
  set(Phase::loop_backward, tokens * (kept - coda + loop_work + (again ? one_loop - state : 0)));
  set(Phase::prelude_backward, tokens * (prelude + ends + dense_work + (again && c.prelude_layers > 0 ? block : 0)));
  return out;
}

MemoryPlan plan_memory(const ModelConfig& c, int64_t micro_batch, int64_t seq_len, int64_t loops, Recompute recompute,
                       int64_t element) {
  MemoryPlan plan;
  const int64_t parameters = parameter_count(c);
  plan.weights = parameters * (element == 4 ? 4 : 4 + element);
  plan.gradients = parameters * 4;
  plan.moments = parameters * 8;
  plan.loss_chunk = logits_bytes(c, micro_batch * seq_len, element);
  const auto passing = passing_memory(c, micro_batch, seq_len, loops, recompute, element);
  plan.activations = *std::max_element(passing.begin(), passing.end()) - plan.loss_chunk;
  plan.program = int64_t{250} << 20;
  return plan;
}

int64_t cache_bytes(const ModelConfig& c, int64_t positions, int64_t loops, int64_t element) {
  const int64_t values =
      c.attn_type == AttentionType::mla ? c.kv_lora_rank + c.qk_rope_head_dim : 2 * c.n_kv_heads * c.head_dim();
  return (c.prelude_layers + loops + c.coda_layers) * positions * values * element;
}

bool fits(const MemoryPlan& plan, int64_t available) {
  return static_cast<double>(plan.total()) <= 0.85 * static_cast<double>(available);
}

Recompute least_recompute(const ModelConfig& c, int64_t micro_batch, int64_t seq_len, int64_t loops, int64_t element,
                          int64_t available) {
  const MemoryPlan plan = plan_memory(c, micro_batch, seq_len, loops, Recompute::none, element);
  return fits(plan, available) ? Recompute::none : Recompute::loop;
}

namespace {
std::string shown(int64_t bytes) { return bytes_text(static_cast<double>(std::max<int64_t>(0, bytes))); }
}  // namespace

std::string memory_text(const MemoryPlan& p, int64_t available) {
  const auto line = [](const char* what, int64_t bytes) { return fmt::format("  {:<34} {:>9}\n", what, shown(bytes)); };
  std::string text = "memory, predicted\n";
  text += line("weights", p.weights);
  text += line("gradients", p.gradients);
  text += line("optimizer moments", p.moments);
  text += line("activations", p.activations);
  text += line("logits chunk and its gradient", p.loss_chunk);
  text += line("program and libraries", p.program);
  if (p.snapshot > 0) text += line("copy to write checkpoints from", p.snapshot);
  text += line("together", p.total());
  text += fmt::format("  {:<34} {:>9} of {} available", "free", shown(available - p.total()), shown(available));
  return text;
}

std::string measured_memory_text(const MemoryPlan& p, int64_t tensors, int64_t resident, int64_t available) {
  const auto line = [](const char* what, int64_t predicted, int64_t measured) {
    return fmt::format("  {:<34} {:>9} {:>9}\n", what, shown(predicted), shown(measured));
  };
  const int64_t kept = p.weights + p.gradients + p.moments;  // exact: they are allocated as they are counted
  const int64_t passing = p.activations + p.loss_chunk;
  std::string text = fmt::format("  {:<34} {:>9} {:>9}\n", "memory of the first step", "predicted", "measured");
  text.erase(0, 2);
  text += line("weights, gradients, moments", kept, kept);
  text += line("activations and logits chunk", passing, tensors - kept);
  text += line("program and libraries", p.program, resident - tensors);
  if (p.snapshot > 0) text += line("copy to write checkpoints from", p.snapshot, 0);
  text += line("together", p.total(), resident);
  text += fmt::format("  {:<34} {:>9} {:>9}", "free", "", shown(available));
  return text;
}

}  // namespace mythos
