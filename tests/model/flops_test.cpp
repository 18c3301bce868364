#include "model/flops.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace mythos {
namespace {

ModelConfig article() {
  ModelConfig c = preset("mythos_300m");
  c.vocab_size = 199998;
  return c;
}

TEST(Flops, Mythos300mAsPublished) {
  const FlopsPerToken f = flops_per_token(article(), 2048, 8);
  EXPECT_NEAR(f.head / 1e9, 0.410, 0.0005);
  EXPECT_NEAR(f.dense_blocks / 1e9, 0.051, 0.0005);
  EXPECT_NEAR(f.loops / 1e9, 0.236, 0.0005);
  EXPECT_NEAR(f.attention / 1e9, 0.063, 0.0005);
  EXPECT_NEAR(f.forward / 1e9, 0.759, 0.0005);
  EXPECT_NEAR(f.train / 1e9, 2.28, 0.005);
  EXPECT_EQ(f.head, 409595904);
  EXPECT_EQ(f.train, 3 * f.forward);
}

// Every matrix counts two operations for each of its numbers, as often as it is used: counted here from the list of
// parameters, there from the model's sizes.
TEST(Flops, AgreeWithTheListOfParameters) {
  ModelConfig gqa = article();
  gqa.attn_type = AttentionType::gqa;
  ModelConfig shared = article();
  shared.n_shared_experts = 3;
  shared.n_experts_per_tok = 5;
  shared.coda_layers = 0;
  for (const auto& c : {article(), gqa, shared, preset("3b"), preset("1t")}) {
    const int64_t loops = 5;
    double matrices = 0;
    for (const auto& spec : parameter_specs(c)) {
      const bool matrix = spec.shape.size() == 2 && spec.name != "recurrent.lora.scale.weight";
      if (!matrix) continue;
      auto uses = static_cast<double>(spec.name.starts_with("recurrent.") ? loops : 1);
      if (spec.name.find("routed_experts") != std::string::npos) {
        uses *= static_cast<double>(c.n_experts_per_tok) / static_cast<double>(c.n_experts);
      }
      matrices += 2 * uses * static_cast<double>(spec.numel());
    }
    const FlopsPerToken f = flops_per_token(c, 100, loops);
    EXPECT_NEAR((f.head + f.dense_blocks + f.loops) / matrices, 1, 1e-12);
  }
}

TEST(Flops, AttentionCountsTheCausalHalf) {
  ModelConfig c = article();
  const double per_key = 2.0 * 16 * (96 + 64) * (4 + 3);  // heads, widths of q and v, block runs
  for (const int64_t length : {1, 2, 7, 2048}) {
    double keys = 0;
    for (int64_t i = 0; i < length; ++i) keys += static_cast<double>(i + 1);
    EXPECT_NEAR(flops_per_token(c, length, 3).attention, per_key * keys / static_cast<double>(length), 1e-3);
  }
  c.attn_type = AttentionType::gqa;
  EXPECT_EQ(flops_per_token(c, 1, 1).attention, 2.0 * 16 * (64 + 64) * 5);
}

TEST(Flops, LoopsWithoutGradientHaveNoBackwardPass) {
  const ModelConfig c = article();
  const FlopsPerToken all = flops_per_token(c, 2048, 8);
  const FlopsPerToken half = flops_per_token(c, 2048, 8, 4);
  const FlopsPerToken four = flops_per_token(c, 2048, 4);
  EXPECT_EQ(half.forward, all.forward);
  EXPECT_NEAR(half.train, four.train + (all.forward - four.forward), 1);
}

TEST(Flops, ChoicesAreAveraged) {
  const ModelConfig c = article();
  const std::array<int64_t, 2> choices = {4, 8};
  EXPECT_NEAR(flops_per_token(c, 512, choices).train, flops_per_token(c, 512, 6).train, 1);
}

TEST(Flops, RefuseNonsense) {
  const ModelConfig c = article();
  EXPECT_THROW(flops_per_token(c, 0, 8), Error);
  EXPECT_THROW(flops_per_token(c, 8, 0), Error);
  EXPECT_THROW(flops_per_token(c, 8, -1), Error);
  EXPECT_THROW(flops_per_token(c, 8, 2, 3), Error);
  EXPECT_THROW(flops_per_token(c, 8, 2, -1), Error);
  EXPECT_THROW(flops_per_token(c, 8, std::span<const int64_t>()), Error);
}

TEST(Parameters, PartsOfMythos300m) {
  const ParametersByPart p = parameters_by_part(article());
  EXPECT_EQ(p.total(), 339'241'922);
  EXPECT_EQ(p.embedding, 199998LL * 1024);
  EXPECT_EQ(p.prelude, 2 * (2'129'920 + 256 + 128 + 3 * 1024 * 1365 + 2 * 1024));
  EXPECT_EQ(p.coda, p.prelude);
  EXPECT_EQ(p.recurrent_routed, 32LL * 3 * 1024 * 1024);
  EXPECT_EQ(p.recurrent_shared, 3LL * 1024 * 2048);
  EXPECT_EQ(p.recurrent_attention, 2'129'920 + 256 + 128);
  EXPECT_EQ(p.final_norm, 1024);
  EXPECT_EQ(p.active, p.total() - 30LL * 3 * 1024 * 1024);
}

TEST(Parameters, PartsAddUpForEveryPreset) {
  for (const auto& name : preset_names()) {
    const ModelConfig c = preset(name);
    const ParametersByPart p = parameters_by_part(c);
    EXPECT_EQ(p.total(), parameter_count(c)) << name;
    EXPECT_LT(p.active, p.total()) << name;
  }
}

// N1: all experts count as parameters, the chosen ones as work.
TEST(FieldCaseN1, TwiceTheExpertsAreTwiceTheExpertWeights) {
  ModelConfig few = article();
  few.n_experts = 8;
  ModelConfig many = few;
  many.n_experts = 16;
  EXPECT_EQ(parameters_by_part(many).recurrent_routed, 2 * parameters_by_part(few).recurrent_routed);
  const double router = 2.0 * 8 * 1024 * 8;  // eight more rows of the router in eight loops
  EXPECT_EQ(flops_per_token(many, 128, 8).loops - flops_per_token(few, 128, 8).loops, router);
}

}  // namespace
}  // namespace mythos
