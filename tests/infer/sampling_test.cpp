#include "infer/sampling.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace mythos {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
const std::vector<float> logits = {0.5F, 2.0F, -1.0F, 1.5F, 2.0F, -inf};

std::map<int64_t, int> counts(const std::vector<float>& l, const SamplingOptions& options, int n = 2000) {
  std::map<int64_t, int> out;
  Random random(11);
  for (int i = 0; i < n; ++i) ++out[sample(l, options, random)];
  return out;
}

std::string refusal_of(const std::function<void()>& work, ExitCode code) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.line();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Sampling, TemperatureZeroIsTheMostLikelyWhateverTheSeed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    EXPECT_EQ(sample(logits, {.temperature = 0, .top_k = 0}, random), 1);
  }
}

TEST(Sampling, TiesGoToTheLowerIndex) {
  Random random(1);
  const std::vector<float> flat(7, 3.25F);
  EXPECT_EQ(sample(flat, {.temperature = 0}, random), 0);
  EXPECT_EQ(sample(flat, {.temperature = 1, .top_k = 1}, random), 0);
  EXPECT_EQ(counts(flat, {.temperature = 1, .top_k = 3}).rbegin()->first, 2) << "the cut at k keeps the lower ones";
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 1}).size(), 1U);
}

// G4
TEST(Sampling, ExtremeTemperaturesStayFinite) {
  for (const double t : {1e-4, 1e-30, 1e-310}) {
    const auto c = counts(logits, {.temperature = t, .top_k = 0});
    for (const auto& [id, n] : c) EXPECT_TRUE(id == 1 || id == 4) << t << " chose " << id;
    EXPECT_EQ(c.size(), 2U) << "two equal logits share";
  }
  const auto flat = counts(logits, {.temperature = 1e30, .top_k = 0}, 5000);
  EXPECT_EQ(flat.size(), 5U) << "all but the impossible one";
  for (const auto& [id, n] : flat) EXPECT_NEAR(n, 1000, 150) << id;
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 0, .top_p = 0}), (std::map<int64_t, int>{{1, 2000}}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 0, .top_p = 1e-9}), (std::map<int64_t, int>{{1, 2000}}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 0, .top_p = 1}, 20000).size(), 5U);
  // exp(0), exp(0), exp(-.5), ..: the first two are 0.66 of 1.
  const auto two = counts(logits, {.temperature = 1, .top_k = 0, .top_p = 0.6});
  EXPECT_EQ(two.size(), 2U);
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 0, .top_p = 0.7}).size(), 3U);
}

TEST(Sampling, TopKOfNoneOneAndMoreThanThereAre) {
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 0}, 20000).size(), 5U);
  EXPECT_EQ(counts(logits, {.temperature = 5, .top_k = 1}), (std::map<int64_t, int>{{1, 2000}}));
  EXPECT_EQ(counts(logits, {.temperature = 1, .top_k = 1'000'000'000'000}, 20000),
            counts(logits, {.temperature = 1, .top_k = 0}, 20000));
  const auto three = counts(logits, {.temperature = 1e6, .top_k = 3});
  EXPECT_EQ(three.size(), 3U);
  EXPECT_EQ(three.count(3), 1U);
}

TEST(Sampling, FrequenciesAreTheSoftmax) {
  const std::vector<float> l = {0.0F, std::log(2.0F), std::log(5.0F)};
  auto c = counts(l, {.temperature = 1, .top_k = 0}, 16000);
  EXPECT_NEAR(c[0], 2000, 250);
  EXPECT_NEAR(c[1], 4000, 350);
  EXPECT_NEAR(c[2], 10000, 400);
}

TEST(Sampling, OptionsOutOfTheirRangeAreRefused) {
  const double not_a_number = std::nan("");
  for (const SamplingOptions& o :
       {SamplingOptions{.temperature = -0.1}, SamplingOptions{.temperature = not_a_number},
        SamplingOptions{.temperature = std::numeric_limits<double>::infinity()}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = -0.01}, SamplingOptions{.top_p = 1.01}, SamplingOptions{.top_p = not_a_number}}) {
    refusal_of([&] { check(o); }, ExitCode::usage);
  }
  EXPECT_NO_THROW(check({.temperature = 0, .top_k = 0, .top_p = 0}));
  EXPECT_NO_THROW(check({.temperature = 1e300, .top_k = INT64_MAX, .top_p = 1}));
}

TEST(Sampling, LogitsThatAreNoNumbersAreAnErrorAndNotTokenZero) {
  Random random(1);
  for (const double t : {0.0, 1.0}) {
    const SamplingOptions o{.temperature = t};
    const auto line = refusal_of([&] { sample(std::vector<float>{1, 2, nan, 0}, o, random); }, ExitCode::failed);
    EXPECT_NE(line.find("token 2"), std::string::npos) << line;
    refusal_of([&] { sample(std::vector<float>{nan, nan}, o, random); }, ExitCode::failed);
    refusal_of([&] { sample(std::vector<float>{-inf, -inf}, o, random); }, ExitCode::failed);
    refusal_of([&] { sample(std::vector<float>{0, inf}, o, random); }, ExitCode::failed);
    refusal_of([&] { sample(std::vector<float>{}, o, random); }, ExitCode::failed);
  }
}

}  // namespace
}  // namespace mythos
