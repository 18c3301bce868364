// A rank's step as it is planned, against the real Sharding: bytes and memory; times against numbers worked out by
// hand.
#include "plan/rank_step.h"

#include "../support/small_model.h"

#include "kernels/memory.h"
#include "plan/by_gpus.h"
#include "step/train_step.h"

#include <gtest/gtest.h>

#include <deque>

namespace mythos {
namespace {

// Rank 0 among ranks that are not there: whatever they would say is what it says itself. It counts like the real ones.
class Alone final : public Communicator {
 public:
  Alone(int64_t size, std::deque<int64_t> splits) : size_(size), splits_(std::move(splits)) {}
  [[nodiscard]] int64_t rank() const override { return 0; }
  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] Handle all_gather(const at::Tensor& out, const at::Tensor& in) override {
    const at::NoGradGuard no_grad;
    const at::Tensor own = in.numel() < 1000 ? in.clone() : in;
    for (int64_t r = 0; r < size_; ++r) out.variable_data().narrow(0, r * in.numel(), in.numel()).copy_(own);
    count((size_ - 1) * bytes(in), in);
    return nullptr;
  }
  [[nodiscard]] Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    const at::NoGradGuard no_grad;
    if (out.data_ptr() != in.data_ptr()) out.copy_(in.narrow(0, 0, out.numel()));
    count((size_ - 1) * bytes(out), out);
    return nullptr;
  }
  [[nodiscard]] Handle all_reduce(const at::Tensor& tensor) override {
    count(2 * (size_ - 1) * bytes(tensor) / size_, tensor);
    return nullptr;
  }
  [[nodiscard]] Handle broadcast(const at::Tensor& /*tensor*/, int64_t /*from*/) override { return nullptr; }
  void barrier() override {}
  [[nodiscard]] std::shared_ptr<Communicator> split(int64_t /*group*/) override {
    const int64_t n = splits_.front();
    splits_.pop_front();
    return std::make_shared<Alone>(n, std::deque<int64_t>());
  }
  [[nodiscard]] int64_t bytes_sent() const override { return sent_; }

 private:
  static int64_t bytes(const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); }
  // What ranks agree on is no float.
  void count(int64_t bytes, const at::Tensor& t) {
    if (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16) sent_ += bytes;
  }
  int64_t size_;
  std::deque<int64_t> splits_;
  int64_t sent_ = 0;
};

ModelConfig medium_model() {
  ModelConfig c = test::small_config();
  c.vocab_size = 3000;
  c.dim = 160;
  c.n_heads = 5;
  c.max_seq_len = 256;
  c.kv_lora_rank = 48;
  c.q_lora_rank = 64;
  c.qk_rope_head_dim = 16;
  c.qk_nope_head_dim = 24;
  c.v_head_dim = 32;
  c.expert_dim = 96;
  c.n_shared_experts = 1;
  c.n_experts = 24;
  c.prelude_layers = 2;
  return c;
}

struct Seen {
  int64_t one = 0, all = 0;  // bytes sent in a step of one micro-step, and of several
  int64_t peak = 0;          // of tensors, in the latter
};

Seen seen(const ModelConfig& c, ShardingMode mode, int64_t ranks, int64_t group, bool every, at::ScalarType compute,
          int64_t micro_steps, int64_t seq_len) {
  const auto world = std::make_shared<Alone>(ranks, std::deque<int64_t>{group, ranks / group});
  Sharding sharding(world, mode, {.group = group, .reduce_every_micro_step = every});
  Model m(c, at::kCPU, compute, at::kFloat, true, sharding.partition());
  initialize(m.parameters(), c, 3);
  AdamW optimizer(m.parameters(), {});
  TrainStep step(m, optimizer, &sharding);
  const at::Tensor ids = at::randint(c.vocab_size, {2, seq_len}, at::kLong);
  Seen out;
  const auto run = [&](int64_t n) {
    const int64_t before = sharding.bytes_sent();
    step.begin({.clip = 1, .n_loops = 2, .loss_tokens = static_cast<double>(ids.numel() * n), .micro_steps = n});
    for (int64_t i = 0; i < n; ++i) step.micro_step(ids, ids);
    step.finish(0);
    return sharding.bytes_sent() - before;
  };
  out.one = run(1);
  reset_memory_peak();
  out.all = run(micro_steps);
  out.peak = memory_use().peak;
  return out;
}

struct Way {
  const char* mode;
  int64_t ranks, group;
  bool every = false;
};
constexpr Way ways[] = {{"none", 2, 1},      {"none", 3, 1},   {"optimizer", 2, 1}, {"optimizer", 3, 1},
                        {"full", 2, 1},      {"full", 3, 1},   {"full", 64, 1},     {"full", 3, 1, true},
                        {"hybrid", 6, 3},    {"hybrid", 6, 1}, {"hybrid", 4, 4},    {"hybrid", 8, 2, true},
                        {"optimizer", 64, 1}};

RankStepRequest step_of(const ModelConfig& c, const Way& w, int64_t element, int64_t micro_steps) {
  RankStepRequest r;
  r.mode = sharding_mode_from(w.mode);
  r.parts = r.mode == ShardingMode::none ? 1 : r.mode == ShardingMode::hybrid ? w.group : w.ranks;
  r.copies = w.ranks / r.parts;
  r.looped = static_cast<size_t>(c.prelude_layers + 1);
  r.element = element;
  r.micro_steps = micro_steps;
  r.reduce_every_micro_step = w.every;
  for (const auto& unit : flat_layout(c).units) {
    r.units.push_back({.shard = Partition{.parts = r.parts}.shard_size(unit.size)});
  }
  return r;
}

TEST(RankStep, SendsWhatShardingSends) {
  for (const bool half : {false, true}) {
    ModelConfig c = test::small_config();
    if (half) c.coda_layers = 0;  // the looped unit is the last
    for (const Way& w : ways) {
      const auto type = half ? at::kBFloat16 : at::kFloat;
      const Seen real = seen(c, sharding_mode_from(w.mode), w.ranks, w.group, w.every, type, 5, 8);
      const std::string what = fmt::format("{} on {}, groups of {}, {}", w.mode, w.ranks, w.group, half);
      const RankStep one = play_step(step_of(c, w, half ? 2 : 4, 1)), five = play_step(step_of(c, w, half ? 2 : 4, 5));
      EXPECT_EQ(one.gathered + one.reduced, real.one) << what;
      EXPECT_EQ(five.gathered + five.reduced, real.all) << what;
      EXPECT_GT(real.one, 0) << what;
    }
  }
}

TEST(RankStep, MemoryIsWhatTensorsTake) {
  keep_tensor_memory();
  const ModelConfig c = medium_model();
  for (const Way& w : ways) {
    for (const int64_t micro_steps : {int64_t{1}, int64_t{3}}) {
      ByGpusRequest r;
      r.config = parse_config(
          fmt::format("[model]\npreset = \"mythos_300m\"\n[train]\nseq_len = 256\nglobal_batch_tokens = {}\n",
                      w.ranks * micro_steps * 512),
          "test.toml", "test");
      r.config.model = c;
      r.config.train.loops = {2};  // whatever the weights are, more than one is run
      r.config.train.sharding = w.mode;
      r.config.train.sharding_group = w.group;
      r.config.train.reduce_gradients = w.every ? "micro_step" : "step";
      r.counts = {w.ranks};
      r.micro_batch = 2;
      r.element = 4;
      r.tokens_per_second = 1;
      const ByGpus plan = plan_by_gpus("a GPU", r);
      const RankMemory& m = plan.rows[0].memory;
      ASSERT_EQ(plan.rows[0].batch.grad_accum, micro_steps);
      const Seen real = seen(c, sharding_mode_from(w.mode), w.ranks, w.group, w.every, at::kFloat, micro_steps, 256);
      const double ratio = static_cast<double>(m.total() - m.program) / static_cast<double>(real.peak);
      EXPECT_NEAR(ratio, 1, 0.06) << fmt::format(
          "{} on {}, groups of {}, {} micro-steps: {} predicted, {} seen; kept {}, whole {} and {}, activations {}",
          w.mode, w.ranks, w.group, micro_steps, m.total() - m.program, real.peak, m.master + m.gradients + m.moments,
          m.gathered, m.whole_gradients, m.activations + m.loss_chunk);
    }
  }
}

// Three units and round numbers: embedding, one block, the looped one.
RankStepRequest simple(ShardingMode mode) {
  RankStepRequest r;
  r.mode = mode;
  r.parts = 2;
  r.looped = 2;
  r.units = {{.shard = 16, .gather = 1, .reduce = 2},
             {.shard = 16, .forward = 4, .backward = 8, .gather = 3, .reduce = 6},
             {.shard = 16, .forward = 10, .backward = 20, .gather = 5, .reduce = 10}};
  r.head = 7;
  return r;
}

TEST(RankStep, WhatIsWaitedForByHand) {
  // full, one micro-step: unit 0 comes until 1, unit 1 until 4; unit 2 comes beside it until 9, the forward pass of 1
  // is done at 8. Forward of 2 until 19, head until 26; unit 1 comes again beside the backward of 2, which ends at 46.
  // Then gradients of 2 leave until 56 beside the backward of 1, until 54; those of 1 until 62, those of 0 until 64.
  const RankStep one = play_step(simple(ShardingMode::full));
  EXPECT_DOUBLE_EQ(one.step, 64);
  EXPECT_DOUBLE_EQ(one.computing, 49);
  EXPECT_DOUBLE_EQ(one.traffic, 1 + 3 + 5 + 3 + 18);
  // Every one before the last ends with the backward pass, at 54.
  RankStepRequest four = simple(ShardingMode::full);
  four.micro_steps = 4;
  EXPECT_DOUBLE_EQ(play_step(four).micro_step, 54);
  EXPECT_DOUBLE_EQ(play_step(four).step, 3 * 54 + 64);
  EXPECT_DOUBLE_EQ(play_step(four).traffic, 4 * 12 + 18);
  // All leave after every micro-step.
  four.reduce_every_micro_step = true;
  EXPECT_DOUBLE_EQ(play_step(four).step, 4 * 64);
  // optimizer: nothing comes before it is needed; gradients leave from 4 + 10 + 7 + 20 = 41 on; all comes at the end.
  const RankStep optimizer = play_step(simple(ShardingMode::optimizer));
  EXPECT_DOUBLE_EQ(optimizer.step, 41 + 10 + 6 + 2 + 9);
  // none: as much, and nothing at the end.
  RankStepRequest none = simple(ShardingMode::none);
  none.parts = 1, none.copies = 2;
  EXPECT_DOUBLE_EQ(play_step(none).step, 41 + 10 + 6 + 2);
  RankStepRequest hybrid = simple(ShardingMode::hybrid);
  hybrid.copies = 2;
  for (UnitCost& u : hybrid.units) u.sum = 100;
  EXPECT_DOUBLE_EQ(play_step(hybrid).step, 64 + 300);
}

HeldUnits in(const RankStep& step, Phase phase) { return step.held[static_cast<size_t>(phase)]; }

// Two parts of 16 elements and of 1,600 for the looped unit; 2 bytes for values, 6 for gradients.
TEST(RankStep, UnitsThatAreThereByHand) {
  RankStepRequest r = simple(ShardingMode::full);
  r.units[2].shard = 1600;
  const RankStep one = play_step(r);
  // Embedding, block and looped unit; gradients of the embedding, which is the head.
  EXPECT_EQ(in(one, Phase::loop_forward).values, 2 * (3200 + 32 + 32));
  EXPECT_EQ(in(one, Phase::loop_forward).gradients, 4 * 32);
  EXPECT_EQ(in(one, Phase::loss).values, 2 * (3200 + 32));
  // The looped unit and the block that comes; gradients of it and of the embedding.
  EXPECT_EQ(in(one, Phase::loop_backward).values, 2 * (3200 + 32));
  EXPECT_EQ(in(one, Phase::loop_backward).gradients, 4 * (3200 + 32));
  // Its gradients are on their way.
  EXPECT_EQ(in(one, Phase::prelude_backward).values, 2 * 32);
  EXPECT_EQ(in(one, Phase::prelude_backward).gradients, 4 * (3200 + 64));
  EXPECT_EQ(in(one, Phase::coda_backward).total(), 0) << "there is no coda";
  // With several micro-steps every unit's gradients stay.
  r.micro_steps = 2;
  EXPECT_EQ(in(play_step(r), Phase::loss).gradients, 4 * (3200 + 64));
  EXPECT_EQ(in(play_step(simple(ShardingMode::none)), Phase::loop_backward).total(), 0);
}

}  // namespace
}  // namespace mythos
