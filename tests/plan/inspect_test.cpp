#include "plan/inspect.h"

#include "model/flops.h"

#include <gtest/gtest.h>

#include <array>

namespace mythos {
namespace {

constexpr int64_t checkpoint = 4'070'903'064;

RunConfig shipped(const std::vector<std::string>& overrides = {}) {
  return load_config(std::string(MYTHOS_TEST_DIR) + "/../configs/mythos_300m.toml", overrides);
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Inspect, ModelAsJson) {
  ModelConfig model = preset("mythos_300m");
  model.vocab_size = 199998;
  const std::array<int64_t, 1> loops = {8};
  const Json j = inspect_model(model, 2048, loops, checkpoint);
  EXPECT_EQ(j["parameters"].get<int64_t>(), 339'241'922);
  EXPECT_TRUE(j["train_flops_per_token"].is_number());
  EXPECT_NEAR(j["train_flops_per_token"].get<double>(), 2.278e9, 1e6);
  EXPECT_EQ(j["checkpoint_bytes"].get<int64_t>(), checkpoint);
  EXPECT_EQ(j["loops"].get<int64_t>(), 8);
  EXPECT_EQ(j["model"]["vocab_size"].get<int64_t>(), 199998);
  int64_t sum = 0;
  for (const auto& part : j["parameters_by_part"].flatten()) sum += part.get<int64_t>();
  EXPECT_EQ(sum, 339'241'922);
}

TEST(Inspect, ConfigAsJsonIsTheArticlesRun) {
  const Json j = inspect_config(shipped(), checkpoint);
  EXPECT_EQ(j["micro_batch"].get<int64_t>(), 3);
  EXPECT_EQ(j["grad_accum"].get<int64_t>(), 85);
  EXPECT_EQ(j["global_batch_tokens"].get<int64_t>(), 522'240);
  EXPECT_EQ(j["steps"].get<int64_t>(), 5'744);
  EXPECT_EQ(j["tokens"].get<int64_t>(), 5'744LL * 522'240);
  EXPECT_EQ(j["checkpoints"]["disk_needed_bytes"].get<int64_t>(), 4 * checkpoint);
  EXPECT_NEAR(j["lr"]["floor"].get<double>(), 6e-5, 1e-12);
  const Json two = inspect_config(shipped({"train.micro_batch=2"}), checkpoint);
  EXPECT_EQ(two["global_batch_tokens"].get<int64_t>(), 524'288);
  EXPECT_EQ(two["steps"].get<int64_t>(), 5'722);
}

TEST(Inspect, WhatIsNotSettledIsNull) {
  const Json j = inspect_config(shipped({"train.micro_batch=auto"}), checkpoint);
  for (const char* key : {"micro_batch", "grad_accum", "global_batch_tokens", "steps", "tokens", "train_flops"}) {
    EXPECT_TRUE(j[key].is_null()) << key;
  }
  EXPECT_EQ(inspect_config(shipped({"train.micro_batch=auto", "train.steps=9"}), checkpoint)["steps"].get<int64_t>(),
            9);
  const RunConfig bare = parse_config("[train]\nmicro_batch = 1\n", "bare", "bare");
  EXPECT_TRUE(inspect_config(bare, 1)["steps"].is_null());
  EXPECT_EQ(inspect_config(bare, 1)["grad_accum"].get<int64_t>(), 1);
}

TEST(Inspect, TextHasTheNumbersWithUnits) {
  const std::string text = inspect_config_text("configs/mythos_300m.toml", shipped(), checkpoint);
  for (const char* part :
       {"configs/mythos_300m.toml\n", "339,241,922", "759 MFLOP forward, 2.28 GFLOP to train", "4.07 GB",
        "522,240 tokens: 85 micro-batches of 3 x 2,048 (524,288 asked for)", "5,744 steps",
        "0.0006 after 300 steps of warm-up, then cosine to 6e-05", "16.3 GB for 3 checkpoints"}) {
    EXPECT_TRUE(holds(text, part)) << text << "\nlacks: " << part;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 130U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  const std::string open = inspect_config_text("x", shipped({"train.micro_batch=auto"}), checkpoint);
  EXPECT_TRUE(holds(open, "\"auto\""));
  EXPECT_FALSE(holds(open, "asked for"));
  const std::string chosen = inspect_config_text("x", shipped({"train.loops={choices=[4, 8]}"}), checkpoint);
  EXPECT_TRUE(holds(chosen, "4 or 8 loops drawn each step")) << chosen;
}

TEST(Inspect, EveryPresetHasAText) {
  for (const auto& name : preset_names()) {
    const ModelConfig model = preset(name);
    const std::array<int64_t, 1> loops = {model.max_loop_iters};
    EXPECT_TRUE(holds(inspect_model_text(name, model, 2048, loops, 1), "checkpoint    1 B")) << name;
  }
}

}  // namespace
}  // namespace mythos
