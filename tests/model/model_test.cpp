// The whole model: cached decoding, inputs that are refused, bf16, the first loss.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "base/error.h"

#include <cmath>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// ---- cached decoding (G1) -------------------------------------------------------------------------------------------

class Cached : public testing::TestWithParam<std::tuple<AttentionType, int64_t, at::ScalarType>> {
 protected:
  [[nodiscard]] double tolerance() const { return std::get<2>(GetParam()) == at::kDouble ? 1e-12 : 1e-5; }
  at::Tensor in_pieces(const std::vector<int64_t>& pieces) {
    const at::NoGradGuard no_grad;
    KvCache cache;
    Tensors logits;
    int64_t begin = 0;
    for (const int64_t n : pieces) {
      EXPECT_EQ(cache.length(), begin);
      logits.push_back(model_->logits(
          model_->hidden(ids_.narrow(1, begin, n), {.n_loops = std::get<1>(GetParam()), .cache = &cache})));
      begin += n;
    }
    EXPECT_EQ(begin, 12);
    EXPECT_GT(cache.bytes(), 0);
    return at::cat(logits, 1);
  }
  at::Tensor full() {
    const at::NoGradGuard no_grad;
    return model_->logits(model_->hidden(ids_, {.n_loops = std::get<1>(GetParam())}));
  }

  std::unique_ptr<Model> model_ = small_model(small_config(std::get<0>(GetParam())), std::get<2>(GetParam()));
  at::Tensor ids_ = Draw(at::kDouble, 4).below(61, {2, 12});
};

TEST_P(Cached, EverySplitEqualsTheFullForward) {
  const at::Tensor expected = full();
  for (int64_t prompt = 1; prompt <= 12; ++prompt) {
    std::vector<int64_t> pieces{prompt};
    pieces.resize(static_cast<size_t>(1 + 12 - prompt), 1);
    EXPECT_CLOSE(in_pieces(pieces), expected, tolerance()) << "prompt of " << prompt;
  }
}

TEST_P(Cached, PrefillInChunksEqualsTheFullForward) {
  const at::Tensor expected = full();
  for (const auto& pieces : std::vector<std::vector<int64_t>>{
           {2, 2, 2, 2, 2, 2}, {3, 3, 3, 3}, {5, 5, 2}, {1, 2, 3, 5, 1}, {7, 1, 4}, {11, 1}}) {
    EXPECT_CLOSE(in_pieces(pieces), expected, tolerance()) << pieces.size() << " pieces";
  }
}

// A prompt whose positions all halt at the first loop must leave keys for the later loops of the tokens after it.
TEST_P(Cached, EarlyHaltingPromptKeepsAllLoops) {
  const at::NoGradGuard no_grad;
  value(*model_, "recurrent.act.halt.bias").fill_(8);
  model_->parameters().refresh_compute();
  const at::Tensor expected = full();
  EXPECT_CLOSE(in_pieces({7, 1, 1, 1, 1, 1}), expected, tolerance());
}

INSTANTIATE_TEST_SUITE_P(Decoding, Cached,
                         testing::Combine(testing::Values(AttentionType::mla, AttentionType::gqa),
                                          testing::Values(1, 4, 6), testing::Values(at::kDouble, at::kFloat)),
                         [](const auto& p) {
                           return fmt::format("{}_{}_loops_{}", to_string(std::get<0>(p.param)), std::get<1>(p.param),
                                              std::get<2>(p.param) == at::kDouble ? "fp64" : "fp32");
                         });

TEST(KvCacheGrowth, KeepsWhatItHolds) {
  CacheEntry entry;
  Draw draw(at::kFloat);
  Tensors first, second;
  for (const int64_t n : {1, 62, 1, 1, 200, 3}) {  // past 64 and past doubling
    first.push_back(draw.normal({2, n, 3}));
    second.push_back(draw.normal({2, n, 2, 4}));
    const auto kept = entry.append(first.back(), second.back());
    EXPECT_TRUE(kept.first.equal(at::cat(first, 1)));
    EXPECT_TRUE(kept.second.equal(at::cat(second, 1)));
  }
}

// ---- refused input --------------------------------------------------------------------------------------------------

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.line();
  }
  return "nothing was thrown";
}

TEST(RefusedInput, TokenIdsOutsideTheVocabularyAreNamed) {
  const auto model = small_model(small_config(), at::kFloat);
  const at::Tensor good = at::tensor({1, 2, 60}, at::kLong).unsqueeze(0);
  for (const int64_t bad : {61, 1000000, -1, -100}) {
    const at::Tensor ids = good.clone().index_fill_(1, at::tensor({1}, at::kLong), bad);
    EXPECT_NE(message_of([&] { (void)model->hidden(ids); }).find(fmt::format("token id {} ", bad)), std::string::npos);
    if (bad == -100) continue;  // as a target that is "do not count"
    EXPECT_NE(message_of([&] { (void)model->loss(good, ids, 3); }).find(fmt::format("token id {} ", bad)),
              std::string::npos);
  }
  const at::Tensor ignored = at::full({1, 3}, -100, at::kLong);
  EXPECT_EQ(model->loss(good, ignored, 3).item<double>(), 0);
}

TEST(RefusedInput, MorePositionsThanTheModelHas) {
  const auto model = small_model(small_config(), at::kFloat);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(message_of([&] {
              (void)model->hidden(at::zeros({1, 25}, at::kLong));
            }).substr(0, 19),
            "25 positions asked,");
  KvCache cache;
  (void)model->hidden(at::zeros({1, 24}, at::kLong), {.cache = &cache});
  EXPECT_NE(message_of([&] {
              (void)model->hidden(at::zeros({1, 1}, at::kLong), {.cache = &cache});
            }).find("has 24"),
            std::string::npos);
  EXPECT_EQ(cache.length(), 24);
}

TEST(RefusedInput, ImpossibleConfigurationsNameTheField) {
  ModelConfig c = small_config();
  c.n_heads = 5;
  c.n_experts_per_tok = 6;
  const std::string message = message_of([&] { Model(c, at::kCPU, at::kFloat, at::kFloat, false); });
  EXPECT_NE(message.find("model.n_heads 5 does not divide model.dim 32"), std::string::npos) << message;
  EXPECT_NE(message.find("model.n_experts_per_tok is 6"), std::string::npos) << message;
}

// ---- numbers --------------------------------------------------------------------------------------------------------

TEST(Numbers, Bfloat16IsNearFloat32) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    ModelConfig c = small_config(attention);
    const auto narrow = small_model(c, at::kBFloat16, at::kFloat);
    const auto wide = small_model(c, at::kFloat);
    const at::NoGradGuard no_grad;
    const at::Tensor ids = Draw(at::kDouble).below(61, {3, 20});
    const at::Tensor logits = narrow->logits(narrow->hidden(ids)), expected = wide->logits(wide->hidden(ids));
    EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
    // Where an expert is chosen differently the position differs more, so the mean and not the maximum.
    const at::Tensor difference = (logits.to(at::kFloat) - expected).abs().mean();
    EXPECT_LT(difference.item<double>(), 0.03 * expected.abs().mean().item<double>());
    EXPECT_NEAR(narrow->loss(ids, ids, 60).item<double>(), wide->loss(ids, ids, 60).item<double>(), 0.05);
  }
}

TEST(Numbers, LossEqualsCrossEntropyOfTheLogits) {
  const auto model = small_model(small_config(), at::kDouble);
  const at::NoGradGuard no_grad;
  Draw draw(at::kDouble);
  const at::Tensor ids = draw.below(61, {2, 9}), targets = draw.below(61, {2, 9});
  const at::Tensor logits = model->logits(model->hidden(ids));
  EXPECT_CLOSE(model->loss(ids, targets, 18), at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten()), 1e-12);
}

TEST(Numbers, PositionsSeeOnlyWhatIsBeforeThem) {
  const auto model = small_model(small_config(), at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = Draw(at::kDouble).below(61, {1, 12});
  const at::Tensor changed = ids.clone();
  changed[0][8] = (ids[0][8] + 1).remainder(61);
  const at::Tensor a = model->hidden(ids), b = model->hidden(changed);
  EXPECT_CLOSE(a.narrow(1, 0, 8), b.narrow(1, 0, 8), 1e-13);
  EXPECT_FALSE(a.narrow(1, 8, 1).equal(b.narrow(1, 8, 1)));
}

// Fresh weights: ln V + D * 0.02^2 / 2, with D 256 and V 400 5.991 + 0.051.
TEST(Numbers, FirstLossOfAFreshModel) {
  ModelConfig c = small_config();
  c.vocab_size = 400;
  c.dim = 256;
  c.max_seq_len = 64;
  Model model(c, at::kCPU, at::kFloat, at::kFloat, false);
  initialize(model.parameters(), c, 1);
  const at::NoGradGuard no_grad;
  Draw draw(at::kDouble);
  const at::Tensor ids = draw.below(400, {16, 64}), targets = draw.below(400, {16, 64});
  EXPECT_NEAR(model.loss(ids, targets, 1024).item<double>(), std::log(400.0) + 256 * 0.02 * 0.02 / 2, 0.03);
}

TEST(Numbers, SpectralRadiusIsTheLargestAndSmallestDecay) {
  const auto model = small_model(small_config(), at::kFloat);
  {
    const at::NoGradGuard no_grad;
    value(*model, "recurrent.injection.log_A")[3] = -30;
    value(*model, "recurrent.injection.log_A")[4] = 1;
  }
  const auto [high, low] = model->spectral_radius();
  EXPECT_LT(high, 1);
  EXPECT_NEAR(high, std::exp(-std::exp(-16.0)), 1e-7);
  EXPECT_NEAR(low, std::exp(-std::exp(1.0)), 1e-7);
}

}  // namespace
}  // namespace mythos
