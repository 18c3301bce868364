// mythos bench generate: what bench/against_reference relies on.
#include "cli_testing.h"

#include "base/safetensors.h"
#include "config/run_config.h"
#include "infer/generate_speed.h"

namespace mythos::testing {
namespace {

class BenchGenerateTest : public CliTest {
 protected:
  std::vector<std::string> with(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"bench", "generate", config(), "--vocab", "320", "--threads", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static TensorBytes bytes_of(const std::string& name, DType dtype, const at::Tensor& t) {
    return {{name, dtype, t.sizes().vec()}, {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}};
  }
};

TEST_F(BenchGenerateTest, WeightsAndPromptOfFilesAreTheOnesUsed) {
  const Json fresh = json_of(with({"--seed", "9", "--prompt-len", "4", "--new-tokens", "6", "--loops", "3"}));
  for (const char* key :
       {"tokens_per_s", "prefill_s", "peak_rss_bytes", "read_bytes_per_s", "weight_bytes_per_token",
        "read_limit_tokens_per_s", "fraction_of_limit", "whole_weight_bytes_per_token", "fraction_of_whole_limit"})
    EXPECT_GT(fresh[key].get<double>(), 0) << key;
  EXPECT_EQ(fresh["weight_bytes_per_token"], fresh["whole_weight_bytes_per_token"])
      << "a vocabulary too small to screen";
  EXPECT_EQ(fresh["ids"].size(), 6U);
  EXPECT_EQ(fresh["token_seconds"].size(), 5U);
  EXPECT_EQ(fresh["prompt_tokens"], 4);
  EXPECT_EQ(fresh["loops"], 3);
  EXPECT_EQ(fresh["threads"], 1);
  EXPECT_EQ(fresh["model"]["vocab_size"], 320);

  const std::vector<std::string> overrides{"model.vocab_size=320"};
  const ModelConfig c = load_config(config(), overrides).model;
  Model model(c, at::kCPU, at::kFloat, at::kFloat, false);
  initialize(model.parameters(), c, 9);
  std::vector<TensorBytes> tensors;
  const auto values = model.parameters().named_values();
  for (const auto& [name, tensor] : values) tensors.push_back(bytes_of(name, DType::F32, tensor));
  write_safetensors(folder_ / "weights.safetensors", tensors, {});
  const at::Tensor prompt = at::tensor(random_prompt(4, 320, 9), at::kLong);
  const std::vector<TensorBytes> one = {bytes_of("prompt", DType::I64, prompt)};
  write_safetensors(folder_ / "prompt.safetensors", one, {});
  const Json given = json_of(with({"--weights", folder_ / "weights.safetensors", "--prompt",
                                   folder_ / "prompt.safetensors", "--new-tokens", "6", "--loops", "3"}));
  EXPECT_EQ(given["ids"], fresh["ids"]);
  EXPECT_EQ(given["top_logits"], fresh["top_logits"]);

  tensors.pop_back();
  write_safetensors(folder_ / "weights.safetensors", tensors, {});
  const Outcome o = run(with({"--weights", folder_ / "weights.safetensors"}));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find(values.back().name), std::string::npos) << o.err;
}

TEST_F(BenchGenerateTest, ALargeVocabularyIsScreened) {
  const std::vector<std::string> arguments = {"bench",        "generate", config(),    "--vocab", "20000",
                                              "--new-tokens", "6",        "--threads", "1",       "--json"};
  const Json made = json_of(arguments);
  const double read = made["weight_bytes_per_token"], whole = made["whole_weight_bytes_per_token"];
  EXPECT_LT(read, whole);
  EXPECT_NEAR(made["fraction_of_whole_limit"].get<double>(), made["fraction_of_limit"].get<double>() * whole / read,
              1e-9);
}

TEST_F(BenchGenerateTest, WrongUsageIsOneSentence) {
  Outcome o = run({"bench", "generate", "--preset", "mythos_300n"});
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("mythos_300m"), std::string::npos) << o.err;
  o = run({"bench", "generate", "--set", "model.dim=64"});
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("--set"), std::string::npos) << o.err;
  o = run(with({"--prompt-len", "4000"}));
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("positions"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace mythos::testing
