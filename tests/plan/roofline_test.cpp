// The roofline against the FLOPs that are counted elsewhere, and as its inputs change.
#include "plan/roofline.h"

#include "model/flops.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mythos {
namespace {

RooflineRequest article() {
  RooflineRequest r;
  r.model = preset("mythos_300m");
  r.model.vocab_size = 199'998;
  r.micro_batch = 3;
  r.grad_accum = 85;
  return r;
}

double flops_of(const Roofline& r) {
  return std::accumulate(r.parts.begin(), r.parts.end(), 0.0,
                         [](double s, const RooflinePart& p) { return s + p.flops; });
}

const RooflinePart& part(const Roofline& r, const std::string& name) {
  for (const RooflinePart& p : r.parts) {
    if (p.name == name) return p;
  }
  throw std::out_of_range(name);
}

TEST(Roofline, DoesTheFlopsThatAreCounted) {
  const Catalogue catalogue = Catalogue::built_in();
  RooflineRequest request = article();
  for (const char* name : {"mythos_300m", "mythos_1b"}) {
    request.model = preset(name);
    const Roofline r = roofline(catalogue.gpu("L40S"), request);
    const FlopsPerToken f = flops_per_token(request.model, 2048, request.model.max_loop_iters);
    // Flash attention's backward pass makes the scores once more: 3.5 times the forward pass's, where 3 are counted.
    EXPECT_NEAR(flops_of(r) / r.tokens, f.train + 0.5 * f.attention, 0.002 * f.train) << name;
    EXPECT_DOUBLE_EQ(part(r, "head and loss").flops, 3 * f.head * r.tokens);
    EXPECT_NEAR(part(r, "attention").flops, 3.5 * f.attention * r.tokens, 1e-3 * f.attention * r.tokens);
  }
}

TEST(Roofline, RecomputingCostsAForwardPassOfTheBlocks) {
  const Gpu gpu = Catalogue::built_in().gpu("L40S");
  RooflineRequest request = article();
  const Roofline kept = roofline(gpu, request);
  request.recompute = Recompute::loop;
  const Roofline again = roofline(gpu, request);
  const FlopsPerToken f = flops_per_token(request.model, 2048, 8);
  EXPECT_NEAR((flops_of(again) - flops_of(kept)) / kept.tokens, f.loops + f.dense_blocks + f.attention,
              0.01 * f.forward);
  EXPECT_EQ(part(again, "head and loss").estimate_s, part(kept, "head and loss").estimate_s);
  EXPECT_LT(again.mfu(), kept.mfu()) << "work done twice counts once";
}

TEST(Roofline, NothingIsFasterThanItsLimits) {
  for (const char* name : {"L40S", "H100", "H200", "A100 80GB"}) {
    const Gpu gpu = Catalogue::built_in().gpu(name);
    const Roofline r = roofline(gpu, article());
    for (const RooflinePart& p : r.parts) {
      EXPECT_GE(p.limit_s * (1 + 1e-9), p.flops / gpu.bf16_flops) << p.name;
      EXPECT_GE(p.limit_s * (1 + 1e-9), p.bytes / gpu.bandwidth) << p.name;
      EXPECT_GT(p.estimate_s, p.limit_s) << p.name;
    }
    EXPECT_GT(r.most_mfu(), r.mfu());
    EXPECT_LT(r.most_mfu(), 1);
    EXPECT_GT(r.mfu(), 0.05);
  }
}

TEST(Roofline, MemoryLimitsWhatDoesNotMultiply) {
  Gpu gpu = Catalogue::built_in().gpu("H200");
  const Roofline before = roofline(gpu, article());
  EXPECT_TRUE(part(before, "norms, activations, residuals").by_memory);
  EXPECT_FALSE(part(before, "head and loss").by_memory);
  gpu.bandwidth *= 2;
  const Roofline faster = roofline(gpu, article());
  EXPECT_NEAR(part(faster, "optimizer").estimate_s, part(before, "optimizer").estimate_s / 2, 1e-9);
  EXPECT_LE(part(faster, "head and loss").estimate_s, part(before, "head and loss").estimate_s);
  RooflineRequest larger = article();
  larger.grad_accum *= 2;
  EXPECT_NEAR(part(roofline(gpu, larger), "optimizer").estimate_s, part(faster, "optimizer").estimate_s / 2, 1e-9);
}

TEST(Roofline, SaysThatItIsAnEstimate) {
  const Roofline r = roofline(Catalogue::built_in().gpu("L40S"), article());
  EXPECT_NE(roofline_text(r).find("an estimate, not measured"), std::string::npos);
  EXPECT_EQ(roofline_json(r)["measured"], false);
  EXPECT_EQ(roofline_json(r)["parts"].size(), r.parts.size());
}

}  // namespace
}  // namespace mythos
