// Several loop counts in one pass: the same as a pass for each.
#include "../support/small_model.h"
#include "base/error.h"

#include <gtest/gtest.h>

namespace mythos::test {
namespace {

at::Tensor some_ids(const ModelConfig& c) { return at::arange(3 * 20).view({3, 20}).remainder(c.vocab_size); }

std::vector<at::Tensor> in_one_pass(Model& model, const at::Tensor& ids, const std::vector<int64_t>& counts,
                                    const LoopObserver* observer = nullptr) {
  std::vector<at::Tensor> out;
  model.hidden_by_loops(
      ids, counts,
      [&](size_t i, const at::Tensor& hidden) {
        EXPECT_EQ(i, out.size());
        out.push_back(hidden.clone());
      },
      observer);
  return out;
}

void expect_as_separate(Model& model, const std::vector<int64_t>& counts) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = some_ids(model.config());
  const auto all = in_one_pass(model, ids, counts);
  ASSERT_EQ(all.size(), counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_TRUE(at::equal(all[i], model.hidden(ids, {.n_loops = counts[i]}))) << counts[i] << " loops";
    EXPECT_EQ(all[i].scalar_type(), model.parameters().values(0).scalar_type());
  }
}

TEST(LoopCounts, EqualSeparateRunsBitForBit) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto model = small_model(small_config(attention), type);
      expect_as_separate(*model, {1, 2, 3, 4, 7});
      expect_as_separate(*model, {2, 5});
      expect_as_separate(*model, {3});
      const at::NoGradGuard no_grad;
      const at::Tensor ids = some_ids(model->config());
      const auto all = in_one_pass(*model, ids, {1, 4});
      EXPECT_FALSE(at::equal(all[0], all[1])) << "loops must matter for this test";
    }
  }
}

TEST(LoopCounts, WherePositionsHaltEarlyToo) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    const auto model = small_model(small_config(attention), at::kFloat);
    {
      const at::NoGradGuard no_grad;
      value(*model, "recurrent.act.halt.weight").zero_();
      value(*model, "recurrent.act.halt.bias").fill_(0.5);  // p = 0.62: halts in the second loop
    }
    int64_t loops_run = 0;
    const LoopObserver observer = [&](const LoopReport& r) { loops_run = r.loop + 1; };
    in_one_pass(*model, some_ids(model->config()), {1, 2, 3, 9}, &observer);
    EXPECT_EQ(loops_run, 2);
    expect_as_separate(*model, {1, 2, 3, 9});
    expect_as_separate(*model, {3, 9});
    expect_as_separate(*model, {1});
  }
}

TEST(LoopCounts, TheObserverSeesEveryLoopOnceAndTheSumSoFar) {
  const auto model = small_model(small_config(), at::kDouble);
  std::vector<int64_t> seen;
  at::Tensor sum;
  const LoopObserver observer = [&](const LoopReport& r) {
    seen.push_back(r.loop);
    const at::Tensor part = r.weight.unsqueeze(-1) * r.state;
    sum = sum.defined() ? sum + part : part;
    EXPECT_TRUE(at::allclose(r.output, sum, 1e-12, 1e-12));
    EXPECT_FALSE(r.output.requires_grad());
  };
  in_one_pass(*model, some_ids(model->config()), {2, 5}, &observer);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(LoopCounts, NoGradientFlowsAndBadCountsAreRefused) {
  const auto model = small_model(small_config(), at::kFloat);
  const at::Tensor ids = some_ids(model->config());
  EXPECT_FALSE(in_one_pass(*model, ids, {2}).front().requires_grad());
  EXPECT_THROW(in_one_pass(*model, ids, {0, 2}), Error);
  EXPECT_THROW(in_one_pass(*model, ids, {2, 2}), c10::Error);
  EXPECT_THROW(in_one_pass(*model, ids, {3, 2}), c10::Error);
  EXPECT_THROW(in_one_pass(*model, ids, {}), c10::Error);
  EXPECT_THROW(in_one_pass(*model, ids + 61, {2}), Error);
  EXPECT_THROW(in_one_pass(*model, at::zeros({1, 25}, at::kLong), {2}), Error);
}

}  // namespace
}  // namespace mythos::test
