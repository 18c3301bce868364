// The model's numbers: presets, parameter counts, and what makes a model impossible.
#include "model/config.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace mythos {
namespace {

TEST(Presets, ParameterCounts) {
  const std::map<std::string, int64_t> counts = {
      {"mythos_300m", 167'211'970},     {"mythos_1b", 1'064'028'034},   {"mythos_3b", 3'041'725'186},
      {"mythos_10b", 9'981'316'994},    {"mythos_50b", 50'374'247'426}, {"mythos_100b", 99'545'072'130},
      {"mythos_500b", 497'849'137'154}, {"mythos_1t", 999'326'352'386},
  };
  EXPECT_EQ(preset_names().size(), counts.size());
  for (const auto& [name, count] : counts) EXPECT_EQ(parameter_count(preset(name)), count) << name;
}

TEST(Presets, Mythos300mWithTheVocabularyOfO200k) {
  ModelConfig c = preset("mythos_300m");
  c.vocab_size = 199998;
  EXPECT_EQ(parameter_count(c), 339'241'922);
}

TEST(Presets, AreAllPossible) {
  EXPECT_TRUE(problems(ModelConfig{}).empty());
  for (const auto& name : preset_names()) EXPECT_TRUE(problems(preset(name)).empty()) << name;
}

TEST(Presets, ShortNamesAndSuggestions) {
  EXPECT_EQ(preset("1t"), preset("mythos_1t"));
  try {
    preset("mythos_400m");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(e.line().find("mythos_300m"), std::string::npos) << e.line();
  }
  EXPECT_THROW(preset(""), Error);
}

TEST(Parameters, NamesAreUniqueAndUnitsInRange) {
  for (const auto type : {AttentionType::mla, AttentionType::gqa}) {
    ModelConfig c = preset("mythos_300m");
    c.attn_type = type;
    std::set<std::string> names;
    for (const auto& spec : parameter_specs(c)) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      EXPECT_GT(spec.numel(), 0) << spec.name;
      EXPECT_GE(spec.unit, 0);
      EXPECT_LT(spec.unit, unit_count(c));
      const std::string unit = unit_name(c, spec.unit);
      EXPECT_TRUE(spec.unit == 0 || spec.name.starts_with(unit)) << spec.name << " in " << unit;
    }
    EXPECT_TRUE(names.contains("embed.weight"));
    EXPECT_FALSE(names.contains("head.weight"));
  }
}

// Exactly one sentence, about this field.
void expect_problem(const ModelConfig& c, const std::string& field) {
  const auto found = problems(c);
  ASSERT_FALSE(found.empty()) << "nothing about " << field;
  for (const auto& sentence : found) EXPECT_NE(sentence.find("model." + field), std::string::npos) << sentence;
}

TEST(Problems, HeadsThatDoNotDivideTheWidth) {
  ModelConfig c = preset("mythos_300m");
  c.n_heads = 24;
  expect_problem(c, "n_heads");
  c.attn_type = AttentionType::gqa;
  expect_problem(c, "n_heads");
  c = preset("mythos_300m");
  c.attn_type = AttentionType::gqa;
  c.n_kv_heads = 3;
  expect_problem(c, "n_kv_heads");
}

TEST(Problems, OddRotaryWidth) {
  ModelConfig c = preset("mythos_300m");
  c.qk_rope_head_dim = 33;
  expect_problem(c, "qk_rope_head_dim");
  c.qk_rope_head_dim = 1;
  expect_problem(c, "qk_rope_head_dim");
  c = preset("mythos_300m");
  c.attn_type = AttentionType::gqa;
  c.dim = 16 * 33;
  expect_problem(c, "dim / model.n_heads");
}

TEST(Problems, MoreExpertsChosenThanThereAre) {
  ModelConfig c = preset("mythos_300m");
  c.n_experts_per_tok = c.n_experts;
  EXPECT_TRUE(problems(c).empty());
  c.n_experts_per_tok = c.n_experts + 1;
  expect_problem(c, "n_experts_per_tok");
}

TEST(Problems, NegativeZeroAndAbsurdSizes) {
  using M = ModelConfig;
  const std::map<std::string, int64_t M::*> sizes = {{"vocab_size", &M::vocab_size},
                                                     {"dim", &M::dim},
                                                     {"n_heads", &M::n_heads},
                                                     {"n_kv_heads", &M::n_kv_heads},
                                                     {"max_seq_len", &M::max_seq_len},
                                                     {"max_loop_iters", &M::max_loop_iters},
                                                     {"kv_lora_rank", &M::kv_lora_rank},
                                                     {"q_lora_rank", &M::q_lora_rank},
                                                     {"qk_rope_head_dim", &M::qk_rope_head_dim},
                                                     {"qk_nope_head_dim", &M::qk_nope_head_dim},
                                                     {"v_head_dim", &M::v_head_dim},
                                                     {"n_experts", &M::n_experts},
                                                     {"n_experts_per_tok", &M::n_experts_per_tok},
                                                     {"expert_dim", &M::expert_dim},
                                                     {"lora_rank", &M::lora_rank},
                                                     {"prelude_layers", &M::prelude_layers},
                                                     {"coda_layers", &M::coda_layers},
                                                     {"n_shared_experts", &M::n_shared_experts}};
  for (const auto& [name, field] : sizes) {
    const bool may_be_none = name.ends_with("_layers") || name == "n_shared_experts";
    for (const int64_t value : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(), int64_t{1} << 25,
                                std::numeric_limits<int64_t>::max()}) {
      ModelConfig c = preset("mythos_300m");
      c.*field = value;
      const auto found = problems(c);
      if (value == 0 && may_be_none) {
        EXPECT_TRUE(found.empty()) << name;
        continue;
      }
      ASSERT_FALSE(found.empty()) << name << " = " << value;
      bool named = false;
      for (const auto& sentence : found) named = named || sentence.find("model." + name) != std::string::npos;
      EXPECT_TRUE(named) << name << " = " << value << ": " << found.front();
    }
  }
}

// Each size alone is allowed; together they overflow every counter.
TEST(Problems, AbsurdTotals) {
  for (const auto type : {AttentionType::mla, AttentionType::gqa}) {
    ModelConfig c = preset("mythos_300m");
    c.attn_type = type;
    c.dim = int64_t{1} << 22;
    EXPECT_TRUE(problems(c).empty());
    c.prelude_layers = 1024;
    ASSERT_EQ(problems(c).size(), 1U);
    EXPECT_NE(problems(c)[0].find("parameters"), std::string::npos) << problems(c)[0];
  }
  for (const auto field : {&ModelConfig::prelude_layers, &ModelConfig::n_experts, &ModelConfig::n_shared_experts}) {
    ModelConfig c = preset("mythos_300m");
    c.*field = 100'000;  // as a list of parameters this would fill the memory
    EXPECT_EQ(problems(c).size(), 1U);
  }
}

TEST(Problems, Fractions) {
  for (const double value : {0.0, -0.5, 1.01, std::nan(""), std::numeric_limits<double>::infinity()}) {
    ModelConfig c = preset("mythos_300m");
    c.act_threshold = value;
    expect_problem(c, "act_threshold");
  }
  for (const double value : {0.5, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    ModelConfig c = preset("mythos_300m");
    c.rope_theta = value;
    expect_problem(c, "rope_theta");
  }
  ModelConfig c = preset("mythos_300m");
  c.act_threshold = 1;
  EXPECT_TRUE(problems(c).empty());
  c.dropout = 0.1;
  expect_problem(c, "dropout");
}

TEST(Problems, AllAreTold) {
  ModelConfig c = preset("mythos_300m");
  c.n_heads = 24;
  c.qk_rope_head_dim = 31;
  c.n_experts_per_tok = 99;
  c.dropout = 0.5;
  EXPECT_EQ(problems(c).size(), 4U);
}

}  // namespace
}  // namespace mythos
