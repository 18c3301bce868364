// The predicted memory of a training step against what its tensors take, counted by the allocator.
#include "plan/memory.h"

#include "../support/small_model.h"

#include "kernels/memory.h"
#include "step/train_step.h"

#include <gtest/gtest.h>

namespace mythos {
namespace {

struct Case {
  const char* name;
  ModelConfig model;
  int64_t micro_batch, seq_len, loops;
};

ModelConfig model(AttentionType attention) {
  ModelConfig c = test::small_config(attention);
  c.vocab_size = 3000;
  c.dim = 160;
  c.n_heads = 5;
  c.n_kv_heads = 1;
  c.max_seq_len = 512;
  c.kv_lora_rank = 48;
  c.q_lora_rank = 64;
  c.qk_rope_head_dim = 16;
  c.qk_nope_head_dim = 24;
  c.v_head_dim = 32;
  c.expert_dim = 96;
  c.n_shared_experts = 1;
  return c;
}

int64_t measured(const Case& c, Recompute recompute) {
  Model m(c.model, at::kCPU, at::kFloat, at::kFloat, true);
  initialize(m.parameters(), c.model, 3);
  for (auto& [name, tensor] : m.parameters().named_values()) {
    if (name == "recurrent.act.halt.bias") at::Tensor(tensor).fill_(-9);  // every loop runs
  }
  AdamW optimizer(m.parameters(), {});
  TrainStep step(m, optimizer);
  const at::Tensor ids = at::randint(c.model.vocab_size, {c.micro_batch, c.seq_len}, at::kLong);
  int64_t peak = 0;
  for (int i = 0; i < 2; ++i) {  // the first step also makes tables
    reset_memory_peak();
    step.begin(
        {.clip = 1, .n_loops = c.loops, .recompute = recompute, .loss_tokens = static_cast<double>(ids.numel())});
    step.micro_step(ids, ids);
    step.finish(1e-3);
    peak = memory_use().peak;
  }
  return peak;
}

TEST(MemoryPlan, IsWithinFivePercentOfWhatTensorsTake) {
  keep_tensor_memory();
  const ModelConfig mla = model(AttentionType::mla), gqa = model(AttentionType::gqa);
  ModelConfig wide = mla;  // the head rules
  wide.vocab_size = 60000;
  ModelConfig no_coda = gqa;
  no_coda.coda_layers = 0;
  no_coda.n_shared_experts = 2;
  ModelConfig many = mla;
  many.n_experts = 16;
  many.n_experts_per_tok = 4;
  many.prelude_layers = 3;
  const Case cases[] = {{"mla", mla, 4, 256, 4},         {"mla short", mla, 16, 64, 2},
                        {"gqa", gqa, 2, 512, 6},         {"large vocabulary", wide, 1, 256, 3},
                        {"no coda", no_coda, 4, 200, 5}, {"many experts", many, 3, 300, 3}};
  for (const Case& c : cases) {
    for (const Recompute recompute : {Recompute::none, Recompute::loop}) {
      const MemoryPlan plan = plan_memory(c.model, c.micro_batch, c.seq_len, c.loops, recompute);
      const auto predicted = static_cast<double>(plan.total() - plan.program);
      const auto seen = static_cast<double>(measured(c, recompute));
      EXPECT_NEAR(predicted / seen, 1, 0.05)
          << c.name << (recompute == Recompute::loop ? ", recomputed" : "") << ": predicted " << predicted << ", seen "
          << seen << "; kept " << plan.weights + plan.gradients + plan.moments << ", activations " << plan.activations
          << ", logits " << plan.loss_chunk;
    }
  }
}

TEST(MemoryPlan, TablesNameTheirUnits) {
  const MemoryPlan plan = plan_memory(preset("mythos_300m"), 1, 2048, 8, Recompute::none);
  const std::string text = memory_text(plan, plan.total() / 2);
  for (const char* word : {"weights", "gradients", "moments", "activations", "logits", "free", "GB", "0 B"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  const std::string seen = measured_memory_text(plan, plan.total() - plan.program, plan.total(), int64_t{1} << 34);
  for (const char* word : {"predicted", "measured", "17.2 GB"}) {
    EXPECT_NE(seen.find(word), std::string::npos) << word << "\n" << seen;
  }
}

}  // namespace
}  // namespace mythos
