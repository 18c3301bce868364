#include "infer/generate_speed.h"

#include "../support/small_model.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace mythos {
namespace {

TEST(GenerateSpeed, MakesWhatTheWholeSequenceWithoutACacheMakes) {
  at::set_num_threads(1);
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    const auto model = test::small_model(test::small_config(attention), at::kDouble, at::kDouble);
    const std::vector<int64_t> prompt = {7, 3, 60, 0, 21};
    const GenerateSpeed speed = measure_generate(*model, prompt, 9, 6);
    ASSERT_EQ(speed.ids.size(), 9U);
    EXPECT_EQ(speed.top_logits.size(), 9U);
    EXPECT_EQ(speed.token_seconds.size(), 8U) << "the first new token belongs to the prompt";
    EXPECT_GT(speed.prefill_seconds, 0);
    EXPECT_GT(speed.tokens_per_second(), 0);
    std::vector<int64_t> all = prompt;
    all.insert(all.end(), speed.ids.begin(), speed.ids.end());
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model->logits(model->hidden(at::tensor(all, at::kLong).unsqueeze(0), {.n_loops = 6}))[0];
    for (size_t i = 0; i < speed.ids.size(); ++i) {
      const at::Tensor at_i = logits[static_cast<int64_t>(prompt.size() + i) - 1];
      EXPECT_EQ(speed.ids[i], at_i.argmax().item<int64_t>()) << i;
      EXPECT_NEAR(speed.top_logits[i], at_i.max().item<double>(), 1e-9) << i;
    }
  }
}

TEST(GenerateSpeed, AScreenedHeadMakesTheSameTokensAndCountsWhatIsRead) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    ModelConfig config = test::small_config();
    config.vocab_size = 1500;
    const auto model = inference_model(config, at::kCPU, type);
    initialize(model->parameters(), config, 5);
    const std::vector<int64_t> prompt = {7, 3, 60, 0, 21};
    const GenerateSpeed whole = measure_generate(*model, prompt, 9, 3);
    const auto element = static_cast<double>(c10::elementSize(type));
    EXPECT_EQ(whole.weight_bytes_per_token, decode_weight_bytes(config, 3, element));
    EXPECT_EQ(whole.whole_weight_bytes_per_token, whole.weight_bytes_per_token);
    EXPECT_EQ(whole.fraction_of_whole_limit(), whole.fraction_of_limit());
    model->screens_from = 1000;
    const GenerateSpeed some = measure_generate(*model, prompt, 9, 3);
    EXPECT_EQ(some.ids, whole.ids);
    EXPECT_EQ(some.top_logits, whole.top_logits);
    EXPECT_EQ(some.whole_weight_bytes_per_token, whole.weight_bytes_per_token);
    // Int8 and three floats a row instead of the row; and the rows of some tokens, at least one, after all.
    const double exact =
        some.weight_bytes_per_token - (whole.weight_bytes_per_token - 1500 * 32 * element) - 1500 * (32 + 12);
    EXPECT_GE(exact, 32 * element);
    EXPECT_LT(exact, 300 * 32 * element);
    EXPECT_NEAR(some.fraction_of_whole_limit(),
                some.fraction_of_limit() * some.whole_weight_bytes_per_token / some.weight_bytes_per_token, 1e-9);
  }
}

TEST(GenerateSpeed, RefusesWhatTheModelCannotHold) {
  const auto model = test::small_model(test::small_config(), at::kFloat, at::kFloat);  // 24 positions, 61 tokens
  const std::vector<int64_t> prompt(20, 1);
  EXPECT_EQ(measure_generate(*model, prompt, 5, 1).ids.size(), 5U) << "the last new token needs no position";
  const auto usage = [&](const std::vector<int64_t>& ids, int64_t new_tokens) {
    try {
      measure_generate(*model, ids, new_tokens, 1);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      return e.line();
    }
    return std::string("no error");
  };
  EXPECT_NE(usage(prompt, 6).find("24 positions"), std::string::npos) << usage(prompt, 6);
  EXPECT_NE(usage({}, 5).find("no token"), std::string::npos);
  EXPECT_NE(usage({1}, 1).find("at least 2"), std::string::npos);
  EXPECT_NE(usage({61}, 2).find("outside the model's vocabulary"), std::string::npos);
}

TEST(GenerateSpeed, RandomPromptsAreTheSameForASeedWithinTheVocabularyAndRepeatSomeTokens) {
  for (const int64_t vocabulary : {1, 2, 61, 199'998}) {
    const auto ids = random_prompt(500, vocabulary, 3);
    EXPECT_EQ(ids, random_prompt(500, vocabulary, 3));
    EXPECT_GE(*std::min_element(ids.begin(), ids.end()), 0);
    EXPECT_LT(*std::max_element(ids.begin(), ids.end()), vocabulary);
  }
  const auto ids = random_prompt(500, 199'998, 3);
  const size_t distinct = std::set<int64_t>(ids.begin(), ids.end()).size();
  EXPECT_LT(distinct, 450U);
  EXPECT_GT(distinct, 100U);
  EXPECT_NE(ids, random_prompt(500, 199'998, 4));
}

}  // namespace
}  // namespace mythos
