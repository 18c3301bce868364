// A run planned from the catalogue: a published run of this model, its time and its money, and what would change them.
#include "plan/run_plan.h"

#include "../support/small_model.h"
#include "base/error.h"
#include "checkpoint/layout.h"
#include "model/cache.h"
#include "model/model.h"

#include <gtest/gtest.h>

#include <functional>

namespace mythos {
namespace {

RunConfig shipped(const std::vector<std::string>& overrides = {}) {
  return load_config(std::string(MYTHOS_TEST_DIR) + "/../configs/mythos_300m.toml", overrides);
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

PlanRequest request(const std::vector<std::string>& overrides = {}) {
  PlanRequest r;
  r.title = "mythos_300m.toml";
  r.config = shipped(overrides);
  r.checkpoint_bytes = checkpoint_bytes(r.config.model);
  r.catalogue = Catalogue::built_in();
  r.quotas = QuotaBook::built_in();
  return r;
}
PlanRequest on_l40s(const std::vector<std::string>& overrides = {}) {
  PlanRequest r = request(overrides);
  r.gpu = "L40S";
  r.mfu = r.catalogue.reference().mfu;
  r.price = 5.0;
  return r;
}

std::string error_of(const PlanRequest& r, ExitCode code = ExitCode::usage) {
  try {
    make_plan(r);
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.line();
    EXPECT_EQ(e.line().find('\n'), std::string::npos);
    return e.line();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(RunPlan, ThePublishedRunComesOutInTimeAndMoney) {
  const RunPlan p = make_plan(on_l40s());
  EXPECT_EQ(p.batch.micro_batch, 3);
  EXPECT_EQ(p.batch.grad_accum, 85);
  EXPECT_EQ(p.batch.global_batch_tokens, 522'240);
  EXPECT_EQ(p.batch.steps, 5'744);
  EXPECT_NEAR(p.expected.tokens_per_second, 5'440, 1);
  EXPECT_NEAR(p.expected.hours, 5'744 * 96.0 / 3600, 0.05);
  EXPECT_NEAR(p.expected.cost, 766, 0.5);
  EXPECT_NEAR(p.expected.mfu, 0.034, 0.0005);
  const std::string text = plan_text(p);
  for (const char* part : {"339,241,922", "153 h", "$766", "161 h", "12 h become true at 44% MFU", "logits", "caches",
                           "522,240", "5,744", "estimated"}) {
    EXPECT_TRUE(holds(text, part)) << part << "\n" << text;
  }
  const RunPlan two = make_plan(on_l40s({"train.micro_batch=2"}));
  EXPECT_EQ(two.batch.grad_accum, 128);
  EXPECT_EQ(two.batch.global_batch_tokens, 524'288);
  EXPECT_EQ(two.batch.steps, 5'722);
}

TEST(RunPlan, TheContractsKeysAreThere) {
  PlanRequest r = on_l40s();
  r.gpu.clear();
  r.instance = "g6e.8xlarge";
  const Json json = to_json(make_plan(r));
  for (const char* key :
       {"parameters", "train_flops_per_token", "micro_batch", "grad_accum", "global_batch_tokens", "steps",
        "tokens_per_s", "mfu", "hours", "cost_usd", "checkpoint_bytes", "disk_needed_bytes", "memory_bytes"}) {
    EXPECT_TRUE(json[key].is_number()) << key;
  }
  EXPECT_EQ(json["parameters"], 339'241'922);
  EXPECT_NEAR(json["pessimistic"]["hours"].get<double>(), 153.2, 0.1);
  EXPECT_NEAR(json["mfu_for_12_hours"].get<double>(), 0.437, 0.005);
  EXPECT_TRUE(holds(json["mfu_of"], "data sheet"));
  for (const char* key : {"name", "code", "unit", "vcpus_needed"}) EXPECT_FALSE(json["quota"][key].is_null()) << key;
  EXPECT_EQ(json["quota"]["vcpus_needed"], 32);
}

TEST(RunPlan, AnEstimateSaysWhatItAssumesAndHowWideItIs) {
  PlanRequest r = request();
  r.instance = "g6e.8xlarge";
  const RunPlan p = make_plan(r);
  EXPECT_NEAR(p.price, 4.52856, 1e-9);
  EXPECT_GT(p.slow.hours, 12 * p.fast.hours);
  EXPECT_NEAR(p.fast.hours, 12, 0.3);
  EXPECT_NEAR(p.slow.hours, 153, 1);
  EXPECT_TRUE(holds(p.speed_source, "not measured"));
  const std::string text = plan_text(p);
  for (const char* part : {"local NVMe", "empty after the machine", "root volume", "8 GiB", "L-DB2E81BA",
                           "g6e.xlarge carries the same L40S with 4 vCPUs",
                           "g6e.2xlarge carries the same L40S with 8 vCPUs", "within a quota of 8", "pessimistic"}) {
    EXPECT_TRUE(holds(text, part)) << part << "\n" << text;
  }
  EXPECT_TRUE(holds(p.changes[0].text, "measuring on the card")) << p.changes[0].text;
  for (size_t i = 1; i < p.changes.size(); ++i) EXPECT_GE(p.changes[i - 1].gain, p.changes[i].gain);
}

TEST(RunPlan, ComparingFindsTheSameCardForHalfThePrice) {
  PlanRequest r = on_l40s();
  r.price.reset();
  r.gpu.clear();
  r.instance = "g6e.8xlarge";
  r.compare = true;
  const RunPlan p = make_plan(r);
  ASSERT_GT(p.choices.size(), 20U);
  const auto at = [&](const std::string& name) -> const Choice& {
    for (const Choice& c : p.choices) {
      if (c.instance.name == name) return c;
    }
    throw std::out_of_range(name);
  };
  EXPECT_TRUE(at("g6e.xlarge").fits);
  EXPECT_DOUBLE_EQ(at("g6e.xlarge").hours, at("g6e.8xlarge").hours);
  EXPECT_LT(at("g6e.xlarge").cost, 0.42 * at("g6e.8xlarge").cost);
  EXPECT_LT(at("g6e.2xlarge").cost, 0.51 * at("g6e.8xlarge").cost);
  for (size_t i = 1; i < p.choices.size(); ++i) {
    if (p.choices[i].fits) {
      EXPECT_GE(p.choices[i].cost, p.choices[i - 1].cost);
    }
  }
  EXPECT_NEAR(at("g6e.8xlarge").hours, 153.2, 0.1);
  EXPECT_FALSE(to_json(p)["compare"].empty());
}

TEST(RunPlan, BudgetAndDeadlineAreAnswered) {
  PlanRequest r = on_l40s();
  r.deadline_hours = 12;
  r.budget = 100;
  const RunPlan p = make_plan(r);
  const Json json = to_json(p);
  EXPECT_EQ(json["deadline"]["possible"], false);
  EXPECT_NEAR(json["deadline"]["mfu_needed"].get<double>(), 0.437, 0.005);
  EXPECT_EQ(json["budget"]["possible"], false);
  EXPECT_NEAR(json["budget"]["hours_allowed"].get<double>(), 20, 1e-9);
  EXPECT_NEAR(json["budget"]["tokens_possible"].get<double>(), 20 * 3600 * 5440.0, 1e5);
  ASSERT_EQ(p.verdicts.size(), 2U);
  EXPECT_TRUE(holds(p.verdicts[0], "44% MFU")) << p.verdicts[0];
  r.deadline_hours = 200;
  r.budget = 800;
  const Json easy = to_json(make_plan(r));
  EXPECT_EQ(easy["deadline"]["possible"], true);
  EXPECT_EQ(easy["budget"]["possible"], true);
  r.gpu = "H100";
  r.price.reset();
  EXPECT_TRUE(holds(error_of(r), "needs a price"));
}

TEST(RunPlan, DiskIsExactAndCountsTheOneBeingWritten) {
  const int64_t one = checkpoint_bytes(shipped().model);
  EXPECT_EQ(make_plan(on_l40s()).disk_needed, 4 * one);
  EXPECT_EQ(make_plan(on_l40s({"checkpoint.keep_last=5"})).disk_needed, 6 * one);
  EXPECT_EQ(make_plan(on_l40s({"checkpoint.keep_last=1"})).disk_needed, 3 * one) << "two stay at the least";
  EXPECT_EQ(make_plan(on_l40s({"train.target_tokens=0", "train.steps=300"})).disk_needed, 2 * one)
      << "step 200 and the last";
  PlanRequest r = request();
  r.device = "a CPU";
  r.measured_peak = 1e12;
  r.device_memory = int64_t{1} << 36;
  r.disk_free = 4 * one - 1;
  const RunPlan p = make_plan(r);
  EXPECT_TRUE(holds(plan_text(p), "a bigger disk")) << plan_text(p);
  r.disk_free = 4 * one;
  EXPECT_FALSE(holds(plan_text(make_plan(r)), "a bigger disk"));
}

TEST(RunPlan, BadInputIsOneSentence) {
  PlanRequest r = on_l40s();
  r.gpu = "L40Z";
  EXPECT_TRUE(holds(error_of(r), "L40"));
  r.gpu = "V100";
  EXPECT_TRUE(holds(error_of(r, ExitCode::refused), "bf16"));
  r = on_l40s();
  r.instance = "g5.xlarge";
  EXPECT_TRUE(holds(error_of(r), "carries the GPU A10G"));
  EXPECT_TRUE(holds(error_of(on_l40s({"train.micro_batch=300"})), "cannot be reached"));
  EXPECT_THROW(shipped({"train.target_tokens=1000"}), Error);
  for (const char* bad : {"", "h", "-3h", "0h", "12 parsecs", "nanh"})
    EXPECT_THROW(hours_from(bad, "--deadline"), Error) << bad;
  EXPECT_DOUBLE_EQ(hours_from("12h", "--deadline"), 12);
  EXPECT_DOUBLE_EQ(hours_from("3d", "--deadline"), 72);
  EXPECT_DOUBLE_EQ(hours_from("90min", "--deadline"), 1.5);
  for (const char* bad : {"", "44", "0", "120%", "x", "-1%"}) EXPECT_THROW(fraction_from(bad, "--mfu"), Error) << bad;
  EXPECT_DOUBLE_EQ(fraction_from("44%", "--mfu"), 0.44);
  EXPECT_DOUBLE_EQ(fraction_from("0.034", "--mfu"), 0.034);
}

TEST(RunPlan, AutoTakesTheLargestThatFits) {
  PlanRequest r = on_l40s({"train.micro_batch=auto"});
  const RunPlan large = make_plan(r);
  EXPECT_GE(large.batch.micro_batch, 3);
  EXPECT_TRUE(large.fits);
  r.gpu = "A10G";
  const RunPlan small = make_plan(r);
  EXPECT_LT(small.batch.micro_batch, large.batch.micro_batch);
  bool chosen = false;
  for (const MemoryRow& row : small.rows) {
    if (row.micro_batch == small.batch.micro_batch && row.recompute == small.recompute) {
      chosen = true;
      EXPECT_TRUE(row.fits);
      EXPECT_EQ(row.bytes, small.memory_bytes);
    }
  }
  EXPECT_TRUE(chosen);
}

// N1: every expert's weights, gradients and moments are counted, and the parameters are the model's own.
TEST(RunPlan, N1EveryExpertIsCounted) {
  for (const AttentionType attention : {AttentionType::mla, AttentionType::gqa}) {
    ModelConfig c = test::small_config(attention);
    const Model model(c, at::kCPU, at::kFloat, at::kFloat, false);
    int64_t numel = 0;
    for (const auto& [name, tensor] : model.parameters().named_values()) numel += tensor.numel();
    EXPECT_EQ(parameters_by_part(c).total(), numel);
  }
  ModelConfig c = preset("mythos_300m");
  c.n_experts = 8;
  const MemoryPlan eight = plan_memory(c, 1, 2048, 8, Recompute::none);
  const int64_t experts = parameters_by_part(c).recurrent_routed;
  c.n_experts = 16;
  const MemoryPlan sixteen = plan_memory(c, 1, 2048, 8, Recompute::none);
  EXPECT_EQ(parameters_by_part(c).recurrent_routed, 2 * experts);
  const int64_t router = 8 * c.dim;
  EXPECT_EQ(sixteen.weights - eight.weights, 4 * (experts + router));
  EXPECT_EQ(sixteen.gradients - eight.gradients, 4 * (experts + router));
  EXPECT_EQ(sixteen.moments - eight.moments, 8 * (experts + router));
}

// N1: the caches are what the real ones take, for every loop.
TEST(RunPlan, N1CachesAreThoseOfTheModel) {
  for (const AttentionType attention : {AttentionType::mla, AttentionType::gqa}) {
    ModelConfig c = test::small_config(attention);
    c.max_seq_len = 96;
    const auto model = test::small_model(c, at::kFloat);
    KvCache cache;
    const at::NoGradGuard no_grad;
    model->hidden(at::randint(c.vocab_size, {1, 80}, at::kLong), {.n_loops = 3, .cache = &cache});
    EXPECT_EQ(cache_bytes(c, 80, 3), cache.bytes()) << to_string(attention);
  }
}

// N2: the logits have a line of their own, far below those of the whole batch at once.
TEST(RunPlan, N2LogitsAreALineOfTheirOwn) {
  const RunPlan p = make_plan(on_l40s());
  EXPECT_GT(p.memory.loss_chunk, 0);
  EXPECT_LE(p.memory.loss_chunk, 1'250'000'000);
  EXPECT_LT(p.memory.loss_chunk, int64_t{3} * 2048 * 199'998 * 2 * 6 / 10) << "never those of the whole micro-batch";
  EXPECT_TRUE(holds(plan_text(p), "logits "));
  EXPECT_EQ(to_json(p)["memory"]["logits"], p.memory.loss_chunk);
}

}  // namespace
}  // namespace mythos
