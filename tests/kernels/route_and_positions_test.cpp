// What routing, rotary tables and attention promise beyond their formulas.
#include "../support/tensors.h"

#include "kernels/attention.h"
#include "kernels/moe.h"

#include <cmath>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// ---- routing --------------------------------------------------------------------------------------------------------

TEST(Route, TakesTheLargestAndWeighsBySoftmaxOverAll) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Draw draw(type);
    const at::Tensor logits = draw.normal({50, 8}, 2), bias = at::randn({8}) * 0.5;
    const Routing r = route(logits, bias, 3);
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    EXPECT_EQ(r.weights.scalar_type(), wide);
    const at::Tensor biased = logits.to(wide) + bias.to(wide);
    EXPECT_TRUE(r.experts.equal(biased.argsort(-1, /*descending=*/true).narrow(1, 0, 3)));
    const at::Tensor all = logits.to(at::kDouble).softmax(-1).gather(1, r.experts);
    EXPECT_CLOSE(r.weights, all / all.sum(-1, true), 1e-6);
    EXPECT_CLOSE(r.weights.sum(-1), at::ones({50}), 1e-6);
  }
}

// M4: the balancing bias decides who is chosen, never how much the choice weighs.
TEST(Route, BiasChoosesButNeverWeighs) {
  Draw draw(at::kFloat);
  const at::Tensor logits = draw.normal({40, 8});
  at::Tensor bias = at::zeros({8});
  const Routing before = route(logits, bias, 2);
  for (int64_t row = 0; row < 40; ++row) {
    const int64_t chosen = before.experts[row][0].item<int64_t>();
    at::Tensor raised = bias.clone();
    raised[chosen] += 5;
    const Routing after = route(logits[row].unsqueeze(0), raised, 2);
    EXPECT_TRUE(after.experts[0].equal(before.experts[row]));
    EXPECT_TRUE(after.weights[0].equal(before.weights[row])) << row;
  }
  const Routing forced = route(logits, bias.index_fill(0, at::tensor({6}, at::kLong), 100), 2);
  EXPECT_TRUE(forced.experts.select(1, 0).eq(6).all().item<bool>());
}

TEST(Route, BiasGetsNoGradient) {
  Draw draw(at::kDouble);
  const at::Tensor logits = leaf(draw.normal({5, 6}));
  const at::Tensor bias = leaf(draw.normal({6}));
  const Routing r = route(logits, bias, 2);
  const auto grads = torch::autograd::grad({r.weights}, {logits, bias}, {draw.normal({5, 2})}, false, false, true);
  EXPECT_GT(grads[0].abs().max().item<double>(), 0);
  EXPECT_FALSE(grads[1].defined());
}

TEST(Route, TiesAreBrokenAlikeEveryTime) {
  for (const int64_t experts : {4, 17, 64}) {
    const at::Tensor logits = at::zeros({33, experts});
    const Routing first = route(logits, {}, 2);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(route(logits, {}, 2).experts.equal(first.experts));
    for (int64_t row = 1; row < 33; ++row) EXPECT_TRUE(first.experts[row].equal(first.experts[0]));
    EXPECT_FALSE(first.experts[0][0].equal(first.experts[0][1]));
    EXPECT_TRUE(first.weights.eq(0.5).all().item<bool>());
  }
}

// ---- rotary ---------------------------------------------------------------------------------------------------------

// R8: positions above 256 must stay apart, in every dtype.
TEST(RotaryTable, RowsAreRoundedFromTheFloatAngle) {
  constexpr int64_t d = 32;
  constexpr double theta = 500000;
  RotaryTable table(d, theta, at::kCPU);
  const at::Tensor frequency = at::reciprocal(at::pow(theta, at::arange(0, d, 2, at::kFloat) / static_cast<float>(d)));
  for (const int64_t position : {0, 255, 257, 4095}) {
    const auto row = table.slice(position, 1);
    EXPECT_EQ(row.cos.scalar_type(), at::kFloat);
    for (int64_t i = 0; i < d / 2; ++i) {
      const float angle = static_cast<float>(position) * frequency[i].item<float>();
      EXPECT_EQ(row.cos[0][i].item<float>(), static_cast<float>(std::cos(static_cast<double>(angle)))) << position;
      EXPECT_EQ(row.sin[0][i].item<float>(), static_cast<float>(std::sin(static_cast<double>(angle)))) << position;
      const double exact = static_cast<double>(position) / std::pow(theta, 2.0 * static_cast<double>(i) / d);
      EXPECT_NEAR(row.cos[0][i].item<double>(), std::cos(exact), 1e-3) << position << " " << i;
      EXPECT_NEAR(row.sin[0][i].item<double>(), std::sin(exact), 1e-3) << position << " " << i;
    }
  }
}

TEST(RotaryTable, GrowingChangesNothing) {
  RotaryTable table(6, 10000, at::kCPU), other(6, 10000, at::kCPU);
  const auto early = table.slice(3, 10);
  const at::Tensor kept = early.cos.clone();
  (void)table.slice(1000, 500);
  EXPECT_TRUE(early.cos.equal(kept));  // slices handed out before stay as they are
  EXPECT_TRUE(table.slice(3, 10).cos.equal(kept));
  EXPECT_TRUE(other.slice(1000, 500).sin.equal(table.slice(1000, 500).sin));
  EXPECT_TRUE(table.slice(255, 2).cos[1].equal(table.slice(256, 1).cos[0]));
}

TEST(Rotate, Bfloat16UsesTheFloatTable) {
  RotaryTable table(8, 500000, at::kCPU);
  Draw draw(at::kBFloat16);
  const at::Tensor x = draw.normal({1, 1, 2, 8});
  for (const int64_t position : {255, 256, 257, 4095}) {
    const auto row = table.slice(position, 1);
    EXPECT_CLOSE(rotate(x, row), rotate(x.to(at::kFloat), row).to(at::kBFloat16), 0.01) << position;
  }
  EXPECT_GT(relative_error(rotate(x, table.slice(256, 1)), rotate(x, table.slice(257, 1))), 0.1);
}

// ---- attention ------------------------------------------------------------------------------------------------------

// G3: one query over a longer cache sees all of it, not the first key alone.
TEST(CausalAttention, OneQuerySeesTheWholeCache) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Draw draw(type);
    const at::Tensor q = at::zeros({1, 1, 2, 4}, type), k = draw.normal({1, 8, 2, 4}), v = draw.normal({1, 8, 2, 4});
    const at::Tensor out = causal_attention(q, k, v);  // equal scores: the mean of all values
    EXPECT_CLOSE(out, v.mean(1, true), rounding(type));
    EXPECT_GT(relative_error(out, v.narrow(1, 0, 1)), 0.1);
  }
}

TEST(CausalAttention, QueriesAreRightAligned) {
  Draw draw(at::kDouble);
  const at::Tensor q = draw.normal({2, 8, 4, 6}), k = draw.normal({2, 8, 2, 6}), v = draw.normal({2, 8, 2, 6});
  const at::Tensor all = causal_attention(q, k, v);
  for (const int64_t t : {1, 3, 7}) {
    const at::Tensor last = causal_attention(q.narrow(1, 8 - t, t), k, v);
    EXPECT_CLOSE(last, all.narrow(1, 8 - t, t), 1e-12) << t;
    EXPECT_CLOSE(last, causal_attention_reference(q.narrow(1, 8 - t, t), k, v), 1e-12) << t;
  }
  // A query never sees a later key.
  const at::Tensor changed = v.clone();
  changed.select(1, 7).fill_(1e6);
  EXPECT_TRUE(causal_attention(q, k, changed).narrow(1, 0, 7).equal(all.narrow(1, 0, 7)));
}

TEST(CausalAttention, QueryHeadsShareKeyHeadsInRuns) {
  Draw draw(at::kDouble);
  const at::Tensor q = draw.normal({1, 5, 6, 4}), k = draw.normal({1, 5, 2, 4}), v = draw.normal({1, 5, 2, 4});
  const at::Tensor grouped = causal_attention(q, k, v);
  for (int64_t head = 0; head < 6; ++head) {
    const at::Tensor alone = causal_attention(q.narrow(2, head, 1), k.narrow(2, head / 3, 1), v.narrow(2, head / 3, 1));
    EXPECT_CLOSE(grouped.narrow(2, head, 1), alone, 1e-12) << head;
  }
}

TEST(CausalAttention, MoreQueriesThanKeysAreRefused) {
  Draw draw(at::kFloat);
  EXPECT_THROW(causal_attention(draw.normal({1, 3, 1, 4}), draw.normal({1, 2, 1, 4}), draw.normal({1, 2, 1, 4})),
               c10::Error);
}

}  // namespace
}  // namespace mythos
