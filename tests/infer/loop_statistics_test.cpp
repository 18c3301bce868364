#include "infer/loop_statistics.h"

#include "../support/small_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace mythos {
namespace {

TEST(LoopStatistics, CountWhatTheLoopsReport) {
  const auto config = test::small_config();
  const auto model = test::small_model(config, at::kFloat, at::kFloat);
  std::vector<LoopReport> reports;
  LoopStatistics statistics(config.n_experts, config.act_threshold), sized(config.n_experts, config.act_threshold, 6);
  const LoopObserver both = [&](const LoopReport& r) {
    reports.push_back(r);
    statistics.observer()(r);
    sized.observer()(r);
  };
  EXPECT_TRUE(statistics.read(4).experts.share.empty()) << "nothing was seen";
  std::vector<int64_t> choices(static_cast<size_t>(config.n_experts), 0);
  std::vector<std::vector<int64_t>> by_loop(4, choices);
  std::vector<int64_t> halted(4, 0);
  int64_t positions = 0, loops = 0;
  for (int pass = 0; pass < 2; ++pass) {
    reports.clear();
    model->hidden(at::arange(2 * 20).view({2, 20}) + pass, {.n_loops = 4, .observer = &both});
    for (const auto& r : reports) {
      for (int64_t i = 0; i < r.experts.numel(); ++i) {
        const auto e = static_cast<size_t>(r.experts.reshape(-1)[i].item<int64_t>());
        ++choices[e];
        ++by_loop[static_cast<size_t>(r.loop)][e];
      }
    }
    for (int64_t i = 0; i < 40; ++i) {
      ++positions;
      double sum = 0;
      int64_t t = 0;
      while (t < 4 && sum < config.act_threshold) {
        if (t < static_cast<int64_t>(reports.size()))
          sum += reports[static_cast<size_t>(t)].halt_p.reshape(-1)[i].item<float>();
        ++t;
      }
      loops += t;
      if (sum >= config.act_threshold) {
        for (auto k = static_cast<size_t>(t - 1); k < 4; ++k) ++halted[k];
      }
    }
  }
  const LoopSummary s = statistics.read(4);
  const double all = static_cast<double>(std::accumulate(choices.begin(), choices.end(), int64_t{0}));
  for (size_t e = 0; e < choices.size(); ++e)
    EXPECT_NEAR(s.experts.share[e], static_cast<double>(choices[e]) / all, 1e-12);
  EXPECT_NEAR(s.experts.max_over_mean(),
              5 * static_cast<double>(*std::max_element(choices.begin(), choices.end())) / all, 1e-12);
  EXPECT_EQ(s.experts.unused(), std::count(choices.begin(), choices.end(), 0));
  const LoopSummary of_sized = sized.read(4);
  EXPECT_EQ(of_sized.experts.share, s.experts.share);
  EXPECT_EQ(of_sized.halted_by_loop, s.halted_by_loop);
  EXPECT_EQ(of_sized.mean_loops, s.mean_loops);
  ASSERT_EQ(s.experts_by_loop.size(), 4U);
  for (size_t t = 0; t < 4; ++t) {
    const double of_loop = static_cast<double>(std::accumulate(by_loop[t].begin(), by_loop[t].end(), int64_t{0}));
    for (size_t e = 0; e < choices.size(); ++e)
      EXPECT_NEAR(s.experts_by_loop[t].share[e], static_cast<double>(by_loop[t][e]) / of_loop, 1e-12);
  }
  const LoopSummary two = statistics.read(2);
  EXPECT_EQ(two.experts_by_loop.size(), 2U);
  for (size_t e = 0; e < choices.size(); ++e)
    EXPECT_NEAR(two.experts.share[e], static_cast<double>(by_loop[0][e] + by_loop[1][e]) / (all / 2), 1e-12);
  const auto n = static_cast<double>(positions);
  for (size_t t = 0; t < 4; ++t) EXPECT_NEAR(s.halted_by_loop[t], static_cast<double>(halted[t]) / n, 1e-12) << t;
  EXPECT_NEAR(s.mean_loops, static_cast<double>(loops) / n, 1e-12);
  EXPECT_GT(s.mean_loops, 1.0);
  EXPECT_LT(s.mean_loops, 4.0);
  const auto halts = s.halts_in_loop();
  EXPECT_NEAR(std::accumulate(halts.begin(), halts.end(), s.never_halted()), 1, 1e-12);
  EXPECT_NEAR(halts[2], s.halted_by_loop[2] - s.halted_by_loop[1], 1e-12);
  statistics.begin();
  EXPECT_TRUE(statistics.read(4).halted_by_loop.empty());
}

TEST(LoopStatistics, LoopsThatDidNotRunHaveNoLoad) {
  const auto config = test::small_config();
  const auto model = test::small_model(config, at::kFloat, at::kFloat);
  const at::NoGradGuard no_grad;
  test::value(*model, "recurrent.act.halt.weight").zero_();
  test::value(*model, "recurrent.act.halt.bias").fill_(30);
  LoopStatistics statistics(config.n_experts, config.act_threshold);
  model->hidden(at::arange(20).view({1, 20}), {.n_loops = 4, .observer = &statistics.observer()});
  const LoopSummary s = statistics.read(4);
  EXPECT_EQ(s.halted_by_loop, (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(s.halts_in_loop(), (std::vector<double>{1, 0, 0, 0}));
  EXPECT_EQ(s.never_halted(), 0);
  EXPECT_GT(s.experts_by_loop[0].max_over_mean(), 0);
  EXPECT_EQ(s.experts_by_loop[3].max_over_mean(), 0);
  EXPECT_EQ(s.experts_by_loop[3].share.size(), 5U);
}

TEST(ExpertLoad, EntropyInBitsAndOfItsMaximum) {
  const ExpertLoad even{{0.25, 0.25, 0.25, 0.25}};
  EXPECT_DOUBLE_EQ(even.entropy(), 2);
  EXPECT_DOUBLE_EQ(even.entropy_fraction(), 1);
  EXPECT_DOUBLE_EQ(even.max_over_mean(), 1);
  const ExpertLoad half{{0.5, 0, 0.5, 0}};
  EXPECT_DOUBLE_EQ(half.entropy(), 1);
  EXPECT_DOUBLE_EQ(half.entropy_fraction(), 0.5);
  EXPECT_EQ(half.unused(), 2);
  const ExpertLoad one{{1, 0, 0, 0}};
  EXPECT_EQ(one.entropy(), 0);
  EXPECT_EQ((ExpertLoad{{0.5, 0.25, 0.25, 0}}.entropy()), 1.5);
}

}  // namespace
}  // namespace mythos
