// Many GPUs: batches, bytes, times and memory against numbers worked out by hand.
#include "plan/by_gpus.h"

#include "base/error.h"
#include "model/parameters.h"
#include "plan/run_plan.h"

#include <gtest/gtest.h>

namespace mythos {
namespace {

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

RunConfig config_of(const std::string& model, const std::string& train) {
  return parse_config("[model]\n" + model + "\n[train]\nseq_len = 2048\n" + train, "test.toml", "test");
}

// One GPU by itself takes a second for its micro-batch of 1; 1 GB/s inside a machine, 0.25 GB/s between two.
ByGpusRequest request(const std::string& sharding, std::vector<int64_t> counts, const std::string& more = "") {
  ByGpusRequest r;
  r.config = config_of("preset = \"mythos_300m\"",
                       "global_batch_tokens = 524288\ntarget_tokens = 3e9\nsharding = \"" + sharding + "\"\n" + more);
  r.counts = std::move(counts);
  r.memory = int64_t{80} << 30;
  r.tokens_per_second = 2048;
  r.interconnect = {.gpus_per_machine = 8, .link = 1e9, .network = 0.25e9};
  return r;
}

TEST(ByGpus, OneGpuIsThePlanItself) {
  PlanRequest r;
  r.config = request("full", {}).config;
  r.catalogue = Catalogue::built_in();
  r.quotas = QuotaBook::built_in();
  r.gpus = {1, 8};
  for (const char* instance : {"g6e.8xlarge", "p5.48xlarge", "p4d.24xlarge"}) {
    r.instance = instance;
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{3}}) {
      r.config.train.micro_batch = rows;
      const RunPlan p = make_plan(r);
      const GpuRow& one = p.by_gpus->rows[0];
      EXPECT_EQ(one.memory.total(), p.memory.total());
      EXPECT_EQ(one.memory.master + one.memory.copies, p.memory.weights);
      EXPECT_EQ(one.batch, p.batch);
      EXPECT_EQ(one.fits, p.fits);
      EXPECT_NEAR(*one.tokens_per_second / p.expected.tokens_per_second, 1, 1e-12);
      EXPECT_NEAR(*one.hours / p.expected.hours, 1, 1e-12);
      EXPECT_NEAR(*one.cost / p.expected.cost, 1, 1e-12);
      EXPECT_DOUBLE_EQ(*one.efficiency, 1);
      EXPECT_FALSE(one.hidden.has_value()) << "nothing is sent";
      EXPECT_EQ(one.step_gather_bytes + one.step_reduce_bytes, 0);
    }
  }
}

// Bytes as docs/cluster.md has them: P is what all weights take, of which parts have as many elements.
TEST(ByGpus, BytesByHand) {
  const FlatLayout layout = flat_layout(request("full", {}).config.model);
  const auto parts = [&](int64_t n) {
    int64_t sum = 0;
    for (const auto& u : layout.units) sum += Partition{.parts = n}.shard_size(u.size);
    return sum;
  };
  const auto ends = [&](int64_t n) {
    return Partition{.parts = n}.shard_size(layout.units.front().size) +
           Partition{.parts = n}.shard_size(layout.units.back().size);
  };
  for (const int64_t n : {int64_t{2}, int64_t{3}, int64_t{64}}) {
    const GpuRow none = plan_by_gpus("", request("none", {n})).rows[0];
    EXPECT_EQ(none.step_gather_bytes, 0);
    EXPECT_NEAR(static_cast<double>(none.step_reduce_bytes), 2.0 * 4 * static_cast<double>((n - 1) * parts(1) / n), 64);
    const GpuRow optimizer = plan_by_gpus("", request("optimizer", {n})).rows[0];
    EXPECT_EQ(optimizer.step_reduce_bytes, 4 * (n - 1) * parts(n));
    EXPECT_EQ(optimizer.step_gather_bytes, 2 * (n - 1) * parts(n));
    const GpuRow full = plan_by_gpus("", request("full", {n})).rows[0];
    EXPECT_EQ(full.step_reduce_bytes, 4 * (n - 1) * parts(n));
    EXPECT_EQ(full.micro_step_gather_bytes, 2 * (n - 1) * (2 * parts(n) - ends(n)));
    EXPECT_EQ(full.step_gather_bytes, full.batch.grad_accum * full.micro_step_gather_bytes);
    EXPECT_EQ(full.batch.grad_accum, 256 / n);
  }
  const GpuRow hybrid = plan_by_gpus("", request("hybrid", {64})).rows[0];
  EXPECT_EQ(hybrid.group, 8) << "a machine";
  EXPECT_EQ(hybrid.micro_step_gather_bytes, 2 * 7 * (2 * parts(8) - ends(8)));
  EXPECT_EQ(hybrid.step_reduce_bytes, 4 * 7 * parts(8) + 2 * 4 * 7 * parts(8) / 8);
  const GpuRow moving = plan_by_gpus("", request("full", {2}, "reduce_gradients = \"micro_step\"")).rows[0];
  EXPECT_EQ(moving.step_reduce_bytes, 128 * 4 * parts(2));
}

TEST(ByGpus, TrafficTakesItsBytesOverTheSlowerOfTheLinksItUses) {
  const auto traffic = [](const GpuRow& r) { return *r.step_traffic_seconds; };
  const auto bytes = [](const GpuRow& r) { return static_cast<double>(r.step_gather_bytes + r.step_reduce_bytes); };
  const ByGpus full = plan_by_gpus("", request("full", {4, 8, 16}));
  EXPECT_NEAR(traffic(full.rows[0]), bytes(full.rows[0]) / 1e9, 1e-6) << "inside a machine";
  EXPECT_NEAR(traffic(full.rows[1]), bytes(full.rows[1]) / 1e9, 1e-6);
  EXPECT_NEAR(traffic(full.rows[2]), bytes(full.rows[2]) / 0.25e9, 1e-6) << "the ring leaves each machine once";
  // hybrid: units come inside a machine; eight sums go out of it at a time.
  const GpuRow hybrid = plan_by_gpus("", request("hybrid", {16})).rows[0];
  int64_t sums = 0;
  for (const auto& u : flat_layout(request("full", {}).config.model).units) {
    sums += 4 * Partition{.parts = 8}.shard_size(u.size);  // 2 * (2 - 1) / 2 of 4 bytes each
  }
  EXPECT_NEAR(traffic(hybrid),
              (bytes(hybrid) - static_cast<double>(sums)) / 1e9 + 8 * static_cast<double>(sums) / 0.25e9, 1e-6);
  // One GPU a machine: only the network.
  ByGpusRequest single = request("full", {4});
  single.interconnect = {.gpus_per_machine = 1, .link = 0, .network = 0.5e9};
  const ByGpus apart = plan_by_gpus("", single);
  EXPECT_TRUE(apart.missing.empty()) << "no link is used";
  EXPECT_EQ(apart.rows[0].machines, 4);
  EXPECT_NEAR(traffic(apart.rows[0]), bytes(apart.rows[0]) / 0.5e9, 1e-6);
  // A step is no shorter than its computing, and no longer than both after another.
  for (const GpuRow& r : full.rows) {
    const double computing = static_cast<double>(r.batch.grad_accum) * r.compute_seconds;
    EXPECT_NEAR(*r.step_seconds, computing + (1 - *r.hidden) * traffic(r), 1e-6);
    EXPECT_GE(*r.hidden, 0);
    EXPECT_LE(*r.hidden, 1);
    EXPECT_NEAR(*r.efficiency, computing / *r.step_seconds, 1e-9);
  }
}

TEST(ByGpus, BatchesFollowFromTheNumberOfGpus) {
  const ByGpus p = plan_by_gpus("", request("full", {1, 3, 64, 256, 1024}));
  EXPECT_EQ(p.rows[0].batch.grad_accum, 256);
  EXPECT_TRUE(p.rows[0].notes.empty());
  EXPECT_EQ(p.rows[1].batch.global_batch_tokens, 85 * 3 * 2048);
  ASSERT_EQ(p.rows[1].notes.size(), 1U);
  EXPECT_TRUE(holds(p.rows[1].notes[0], "no multiple of 3 x 1 x 2,048: a step takes 522,240")) << p.rows[1].notes[0];
  EXPECT_EQ(p.rows[3].batch.grad_accum, 1);
  EXPECT_TRUE(p.rows[3].notes.empty());
  EXPECT_EQ(p.rows[4].batch.global_batch_tokens, 2'097'152);
  EXPECT_EQ(p.rows[4].batch.steps, 1430);
  ASSERT_EQ(p.rows[4].notes.size(), 1U);
  EXPECT_TRUE(holds(p.rows[4].notes[0], "rises from 524,288 to 2,097,152")) << p.rows[4].notes[0];
  EXPECT_EQ(p.rows[4].machines, 128);
  EXPECT_FALSE(p.rows[1].needs_lanes);
  EXPECT_TRUE(p.rows[2].needs_lanes);
  EXPECT_TRUE(holds(by_gpus_text(p), "data.lanes is 16: 1,024 GPUs")) << by_gpus_text(p);
  ByGpusRequest shorter = request("full", {1024});
  shorter.config.train.target_tokens = 2'000'000;
  const GpuRow none = plan_by_gpus("", shorter).rows[0];
  EXPECT_EQ(none.batch.steps, 0);
  EXPECT_FALSE(none.hours.has_value());
  EXPECT_TRUE(holds(none.notes.at(0), "less than one step")) << none.notes[0];
  // Groups that do not divide the ranks are what the program refuses.
  ByGpusRequest groups = request("hybrid", {1, 12, 16}, "sharding_group = 8");
  const ByGpus refused = plan_by_gpus("", groups);
  EXPECT_EQ(refused.rows[0].refused, "");
  EXPECT_TRUE(holds(refused.rows[1].refused, "12 ranks are not groups of 8"));
  EXPECT_EQ(refused.rows[2].refused, "");
  EXPECT_TRUE(holds(by_gpus_text(refused), "is refused"));
}

TEST(ByGpus, CostIsOfMachinesOrOfGpus) {
  ByGpusRequest r = request("none", {3, 16});
  r.price = 2;
  ByGpus p = plan_by_gpus("", r);
  EXPECT_NEAR(*p.rows[0].cost, 2 * 3 * *p.rows[0].hours, 1e-9);
  r.price_of_machine = true;
  p = plan_by_gpus("", r);
  EXPECT_NEAR(*p.rows[0].cost, 2 * 1 * *p.rows[0].hours, 1e-9) << "all of it is paid for";
  EXPECT_NEAR(*p.rows[1].cost, 2 * 2 * *p.rows[1].hours, 1e-9);
  r.price = 0;
  EXPECT_FALSE(plan_by_gpus("", r).rows[0].cost.has_value());
}

TEST(ByGpus, WhatIsNotKnownIsNotGuessed) {
  ByGpusRequest r = request("full", {1, 8, 64});
  r.interconnect.network = 0;
  const ByGpus p = plan_by_gpus("X", r);
  EXPECT_TRUE(p.rows[1].step_seconds.has_value());
  EXPECT_FALSE(p.rows[2].step_seconds.has_value());
  EXPECT_GT(p.rows[2].step_gather_bytes, 0) << "bytes do not depend on it";
  ASSERT_EQ(p.missing.size(), 1U);
  const std::string text = by_gpus_text(p);
  EXPECT_TRUE(holds(text, "not known: the network between machines")) << text;
  EXPECT_TRUE(holds(text, "unknown")) << text;
  Json json = Json::object();
  add_to_json(json, p);
  EXPECT_TRUE(json["by_gpus"][2]["step_s"].is_null());
  EXPECT_TRUE(json["by_gpus_basis"]["network_bytes_per_s"].is_null());
  EXPECT_TRUE(json["by_gpus_limit"]["expert_parallel_s_per_token"].is_null());
  r.interconnect.link = 0;
  EXPECT_EQ(plan_by_gpus("X", r).missing.size(), 2U);
  EXPECT_TRUE(holds(by_gpus_text(plan_by_gpus("X", r)), "link_gb_s of the GPU X"));
}

TEST(ByGpus, TheLargestUnitEndsIt) {
  for (const char* name : {"mythos_100b", "mythos_1t"}) {
    ByGpusRequest r = request("full", {1, 64, 4096});
    r.config = config_of(fmt::format("preset = \"{}\"", name), "global_batch_tokens = 4194304");
    r.recompute = Recompute::loop;
    const ByGpus p = plan_by_gpus("H100", r);
    for (const GpuRow& row : p.rows) EXPECT_FALSE(row.fits) << name;
    EXPECT_TRUE(holds(p.rows[2].why_not, "no number of GPUs changes that")) << p.rows[2].why_not;
    EXPECT_TRUE(holds(p.rows[2].why_not, "\"recurrent\"")) << p.rows[2].why_not;
    EXPECT_FALSE(p.limit.fits);
    EXPECT_EQ(p.limit.unit, "recurrent");
    EXPECT_EQ(p.limit.in_use_bytes, 6 * p.limit.unit_parameters);
    const bool small = std::string(name) == "mythos_100b";
    EXPECT_NEAR(static_cast<double>(p.limit.unit_parameters), small ? 96.2e9 : 979e9, small ? 0.1e9 : 1e9);
    // 4 x K x D x 2 x L x (1 - 1/N)
    EXPECT_DOUBLE_EQ(p.limit.token_bytes, (small ? 4.0 * 8 * 8192 * 2 * 32 : 4.0 * 8 * 16384 * 2 * 64) * 4095 / 4096);
    EXPECT_NEAR(*p.limit.token_traffic_seconds, p.limit.token_bytes / (0.25e9 / 8), 1e-9);
    const std::string text = by_gpus_text(p);
    for (const char* part :
         {"does not fit", "experts would have to stay where they are", "x 4,096 GPUs", "where it stops"})
      EXPECT_TRUE(holds(text, part)) << part << "\n" << text;
    Json json = Json::object();
    add_to_json(json, p);
    EXPECT_TRUE(json["by_gpus"][2]["tokens_per_s"].is_null());
    EXPECT_EQ(json["by_gpus"][2]["memory_fits"], false);
    EXPECT_TRUE(json["by_gpus"][2]["does_not_fit"].is_string());
  }
  EXPECT_TRUE(plan_by_gpus("H100", request("full", {2})).limit.fits);
}

TEST(ByGpus, WhyItDoesNotFitSaysWhatHelps) {
  const auto why = [](ByGpusRequest r, int64_t memory) {
    r.memory = memory;
    const GpuRow row = plan_by_gpus("", r).rows[0];
    EXPECT_EQ(row.fits, row.memory.total() <= memory);
    return row.why_not;
  };
  const auto memory_of = [](const ByGpusRequest& r) { return plan_by_gpus("", r).rows[0].memory; };
  const ByGpusRequest full = request("full", {2});
  const RankMemory m = memory_of(full);
  EXPECT_EQ(why(full, m.total()), "");
  EXPECT_TRUE(holds(why(full, m.total() - 1), "more GPUs share them out")) << why(full, m.total() - 1);
  const std::string units = why(full, m.of_every_gpu() - 1);
  EXPECT_TRUE(holds(units, "which stay from the first micro-step to the last")) << units;
  EXPECT_FALSE(holds(units, "no number of GPUs")) << "a unit at a time would fit: " << units;
  const int64_t sparing = memory_of(request("full", {2}, "reduce_gradients = \"micro_step\"")).total();
  ASSERT_LT(sparing, m.total());
  EXPECT_TRUE(holds(why(full, sparing), "with train.reduce_gradients = \"micro_step\" it is")) << why(full, sparing);
  EXPECT_FALSE(holds(why(full, sparing - 1), "reduce_gradients")) << "that would not fit either";
  const int64_t passing = m.activations + m.loss_chunk + m.program;
  EXPECT_TRUE(holds(why(full, passing - 1), "activations and logits alone")) << why(full, passing - 1);
  const ByGpusRequest optimizer = request("optimizer", {2});
  const RankMemory whole = memory_of(optimizer);
  EXPECT_TRUE(holds(why(optimizer, whole.total() - 1), "more GPUs share out the moments"));
  EXPECT_TRUE(holds(why(optimizer, whole.of_every_gpu() + whole.gradients - 1), "keeps weights and gradients whole"));
  const ByGpusRequest none = request("none", {2});
  EXPECT_TRUE(holds(why(none, memory_of(none).total() - 1), "weights 1.00 GB, gradients 669 MB, moments 1.34 GB"));
  EXPECT_TRUE(holds(why(request("hybrid", {16}), memory_of(request("hybrid", {16})).total() - 1), "a larger group"));
}

TEST(ByGpus, NumbersAreReadOrRefused) {
  EXPECT_EQ(gpu_counts_from("1,8,64", "--gpus"), (std::vector<int64_t>{1, 8, 64}));
  EXPECT_EQ(gpu_counts_from("65536", "--gpus"), (std::vector<int64_t>{65536}));
  std::string many = "1";
  for (int i = 1; i < 32; ++i) many += ",1";
  EXPECT_EQ(gpu_counts_from(many, "--gpus").size(), 32U);
  for (const std::string& bad : {std::string(""), std::string("0"), std::string("x"), std::string("1,,8"),
                                 std::string("1,"), std::string("-1"), std::string("8 "), std::string("1.5"),
                                 std::string("65537"), std::string("99999999999999999999"), many + ",1"}) {
    try {
      gpu_counts_from(bad, "--gpus");
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(ExitCode::usage));
      EXPECT_TRUE(holds(e.line(), "--gpus is '")) << e.line();
      EXPECT_EQ(e.line().find('\n'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace mythos
