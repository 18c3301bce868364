// The likely tokens alone: none that belongs to them may be missing, and their logits are those of the whole product.
#include "kernels/screened_head.h"

#include "../support/tensors.h"
#include "base/random.h"
#include "kernels/cpu/screen.h"
#include "kernels/linear.h"

#include <cmath>
#include <limits>

namespace mythos {
namespace {
using namespace mythos::test;

// Every token at least as likely as the k-th has its logit, bit for bit, and every other its own or -infinity.
void expect_exact(const std::string& what, const at::Tensor& weight, const at::Tensor& hidden, int64_t k) {
  const at::NoGradGuard no_grad;
  const ScreenedHead head(weight);
  ASSERT_TRUE(head.usable()) << what;
  const at::Tensor found = head.largest_logits(hidden, k);
  for (int64_t r = 0; r < hidden.size(0); ++r) {
    const at::Tensor whole = linear(hidden.narrow(0, r, 1), {weight, {}})[0], some = found[r];
    const int64_t n = std::min(k, whole.numel());
    const at::Tensor least = std::get<0>(whole.topk(n)).min();
    const at::Tensor needed = whole >= least;
    EXPECT_TRUE(some.masked_select(needed).equal(whole.masked_select(needed))) << what << ", row " << r << ", k " << k;
    const at::Tensor other = some.isneginf().logical_or(some == whole);
    EXPECT_TRUE(other.all().item<bool>()) << what << ", row " << r;
  }
}

TEST(ScreenedHead, FindsTheLargestOfRandomRows) {
  Draw draw(at::kFloat, 3);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t dim : {1, 7, 16, 33, 64, 257}) {
      const at::Tensor weight = (draw.normal({3000, dim}) * 0.02).to(type);
      for (const int64_t rows : {1, 2, 5, 16}) {
        const at::Tensor hidden = draw.normal({rows, dim});
        for (const int64_t k : {1, 50, 700}) expect_exact(fmt::format("dim {}", dim), weight, hidden, k);
      }
    }
  }
}

TEST(ScreenedHead, TakesEveryNumberOfRows) {
  Draw draw(at::kFloat, 8);
  const at::Tensor weight = draw.normal({1501, 50}), hidden = draw.normal({16, 50});
  for (int64_t rows = 1; rows <= 16; ++rows) {
    expect_exact(fmt::format("{} rows", rows), weight, hidden.narrow(0, 16 - rows, rows), 4);
  }
}

TEST(ScreenedHead, LeavesMostOut) {
  Draw draw(at::kFloat, 4);
  const at::Tensor weight = draw.normal({20'000, 256}) * 0.02, hidden = draw.normal({1, 256});
  const ScreenedHead head(weight);
  const at::Tensor one = head.largest_logits(hidden, 1);
  EXPECT_LT(head.candidates(), 100);
  EXPECT_EQ(one.isneginf().sum().item<int64_t>(), 20'000 - head.candidates());
  (void)head.largest_logits(hidden, 50);
  EXPECT_LT(head.candidates(), 1000);
}

TEST(ScreenedHead, FindsTheLargestOfDifficultRows) {
  Draw draw(at::kFloat, 5);
  const int64_t v = 2500, dim = 96;
  const at::Tensor hidden = draw.normal({3, dim});
  const at::Tensor plain = draw.normal({v, dim});
  const std::vector<std::pair<std::string, at::Tensor>> weights = {
      {"equal rows", plain.narrow(0, 0, 1).expand({v, dim}).contiguous()},
      {"nearly equal rows", (plain.narrow(0, 0, 1) + plain * 1e-5).contiguous()},
      {"zeros", at::zeros({v, dim})},
      {"rows of all sizes", (plain * at::logspace(-12, 6, v).unsqueeze(1)).contiguous()},
      {"one large number in each row",
       [&] {
         at::Tensor w = plain * 1e-3;
         w.scatter_(1, at::arange(v, at::kLong).remainder(dim).unsqueeze(1), 50.0);
         return w;
       }()},
      {"heavy tails", plain * plain.square() * plain.square()},
      {"numbers too small to divide by", plain * 1e-41},
      {"large numbers", plain * 1e18},
  };
  for (const auto& [what, weight] : weights) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const int64_t k : {1, 3, 50, 2499, 2500, 9000}) expect_exact(what, weight.to(type), hidden, k);
    }
  }
  for (const int64_t few : {1, 2, 3, 5}) expect_exact("few tokens", plain.narrow(0, 0, few), hidden, 1);
  for (const double size : {0.0, 1e-30, 1e20}) expect_exact("hidden of another size", plain, hidden * size, 5);
  // One large number beside small ones: what is left of the small ones counts.
  at::Tensor uneven = hidden * 1e-4;
  uneven.select(1, 11).fill_(300);
  expect_exact("one large number in hidden", plain, uneven, 5);
}

// The most likely token's quantised row says less than another's: without the bound it would be left out.
TEST(ScreenedHead, IsNotMisledByQuantisation) {
  const int64_t dim = 64;
  at::Tensor weight = at::zeros({5000, dim});
  at::Tensor hidden = at::ones({1, dim});
  hidden[0][0] = 0;
  // A step of the first row is 1: each 0.49 in it counts as nothing, together they are 30.9. The second is exact.
  weight[0].fill_(0.49);
  weight[0][0] = 127;
  weight[1].narrow(0, 1, 10).fill_(3);
  std::vector<int8_t> q(static_cast<size_t>(dim));
  const auto row = cpu::quantise_row(dim, weight[0].const_data_ptr<float>(), q.data());
  EXPECT_EQ(q[0], 127);
  EXPECT_EQ(q[5], 0);
  EXPECT_GE(row.error, std::sqrt(63 * 0.49 * 0.49));
  const at::Tensor logits = ScreenedHead(weight).largest_logits(hidden, 1);
  EXPECT_EQ(logits[0].argmax().item<int64_t>(), 0);
  EXPECT_NEAR(logits[0][0].item<double>(), 63 * 0.49, 1e-4);
  expect_exact("misleading", weight, hidden, 1);
}

// Weights are exact in int8, but what the hidden state's quantised form leaves adds up.
TEST(ScreenedHead, IsNotMisledByTheHiddenStatesQuantisation) {
  const int64_t dim = 64, range = cpu::screen_range(dim);
  at::Tensor weight = at::zeros({5000, dim}), hidden = at::full({1, dim}, 0.49);
  hidden[0][0] = static_cast<double>(range);  // so that a step is 1: each 0.49 counts as nothing
  hidden[0][1] = 20;
  weight[0].narrow(0, 2, dim - 2).fill_(127);  // 62 x 0.49 x 127 = 3,858
  weight[1][1] = 127;                          // 2,540
  expect_exact("hidden state", weight, hidden, 1);
  EXPECT_EQ(ScreenedHead(weight).largest_logits(hidden, 1)[0].argmax().item<int64_t>(), 0);
}

// Everything is exact in int8 and int16. The float product is not: it drops small terms behind large ones, and what it
// gives counts, not what would be right.
TEST(ScreenedHead, KnowsWhatFloatSumsRound) {
  const int64_t dim = 1024, lanes = 16, large = 33 * lanes;
  at::Tensor weight = at::zeros({5000, dim}), hidden = at::ones({1, dim});
  hidden[0].narrow(0, 0, lanes).fill_(64);
  hidden[0].narrow(0, lanes, large).fill_(16'512);
  hidden[0][0] = static_cast<double>(cpu::screen_range(dim));        // so that a step is 1
  weight.narrow(0, 0, 2).narrow(1, lanes, large).fill_(127);         // each lane's sum goes beyond 2^26
  weight[0].narrow(0, lanes + large, dim - lanes - large).fill_(3);  // 1,440 more, none of which is seen there
  weight[1].narrow(0, 1, lanes - 1).fill_(1);                        // 960 more, from the beginning
  const at::NoGradGuard no_grad;
  const at::Tensor whole = linear(hidden, {weight, {}})[0];
  const at::Tensor right = at::mv(weight.narrow(0, 0, 2).to(at::kDouble), hidden[0].to(at::kDouble));
  ASSERT_GT(whole[1].item<float>(), whole[0].item<float>()) << "the sums are not those this was made for";
  ASSERT_GT(right[0].item<double>(), right[1].item<double>() + 400);
  expect_exact("rounded sums", weight, hidden, 1);
}

// Steps that vanish when they are multiplied: estimates of nothing where the logits are not nothing.
TEST(ScreenedHead, KnowsWhatIsTooSmallToEstimate) {
  const int64_t dim = 64;
  at::Tensor weight = at::zeros({5000, dim}), hidden = at::full({1, dim}, 1e-10);
  const double step = 1e-10 / static_cast<double>(cpu::screen_range(dim));
  weight[0].fill_(127 * 6e-46 / step);  // the product of both steps is less than half the smallest float
  weight[1][5] = 127 * 1.3e-45 / step;  // about the smallest float: a small logit, but seen
  const at::Tensor logits = ScreenedHead(weight).largest_logits(hidden, 1);
  EXPECT_EQ(logits[0].argmax().item<int64_t>(), 0);
  expect_exact("small steps", weight, hidden, 1);
}

// At the ends of float's range estimates overflow or lose their digits: nothing may follow from that.
TEST(ScreenedHead, SaysNothingAtTheEndsOfTheRange) {
  Draw draw(at::kFloat, 7);
  const int64_t v = 2500, dim = 96;
  const at::Tensor hidden = draw.normal({2, dim}).abs(), plain = draw.normal({v, dim}).abs();
  // Rows of one sign and all sizes: sums that overflow do so to the same infinity however they are added.
  const at::Tensor sign = at::where(at::arange(v).remainder(3) == 0, -1.0, 1.0).unsqueeze(1).to(at::kFloat);
  const at::Tensor sizes = at::logspace(-9, 9, v).unsqueeze(1);
  for (const double weights : {1e-25, 1e-9, 1.0, 1e9, 1e19, 1e28}) {
    for (const double states : {1e-44, 1e-41, 1e-38, 1e-34, 1e-20, 1e-8, 1e8, 1e18, 1e30}) {
      const at::Tensor weight = (plain * sizes * sign * weights).contiguous();
      const at::Tensor h = hidden * states;
      const at::NoGradGuard no_grad;
      const at::Tensor whole = linear(h, {weight, {}});
      ASSERT_FALSE(whole.isnan().any().item<bool>());
      const ScreenedHead head(weight);
      if (!head.usable()) continue;
      for (const int64_t k : {1, 40, 2000}) expect_exact(fmt::format("{} x {}", weights, states), weight, h, k);
    }
  }
  // The largest comes first, and its lower bound is infinity minus infinity.
  const at::Tensor falling = (plain * sizes.flip(0) * 1e9).contiguous();
  expect_exact("the first overflows", falling, hidden * 1e24, 1);
  EXPECT_TRUE(ScreenedHead(falling).usable());
  EXPECT_FALSE(ScreenedHead(falling * 1e15).usable());
  // A step of the hidden state of six and a half of the smallest floats would be taken for seven, and the first row
  // reaches its bound.
  at::Tensor tight = at::zeros({v, dim});
  tight[0].narrow(0, 1, 63).fill_(0.49e12);
  tight[0][0] = 127e12;
  tight[1].narrow(0, 1, 10).fill_(3.05e12);
  at::Tensor tiny = at::zeros({1, dim});
  tiny[0].narrow(0, 1, 63).fill_(3e-40);
  expect_exact("a step below the normal floats", tight, tiny, 1);
}

TEST(ScreenedHead, WhatIsNotFiniteGetsEverything) {
  Draw draw(at::kFloat, 6);
  at::Tensor weight = draw.normal({3000, 32});
  at::Tensor hidden = draw.normal({2, 32});
  hidden[1][4] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor logits = ScreenedHead(weight).largest_logits(hidden, 1);
  EXPECT_TRUE(logits[1].isnan().all().item<bool>());
  EXPECT_GT(logits[0].isneginf().sum().item<int64_t>(), 0);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    at::Tensor broken = weight.clone();
    broken[77][3] = bad;
    EXPECT_FALSE(ScreenedHead(broken).usable());
  }
}

TEST(ScreenedHead, SumsOfWholeNumbersAreExact) {
  for (const int64_t k : {1, 15, 64, 1000, 4096, 70'000}) {
    const int64_t range = cpu::screen_range(k), n = 9, rows = 3;
    std::vector<int16_t> x(static_cast<size_t>(rows * k));
    std::vector<int8_t> w(static_cast<size_t>(n * k));
    Random random(static_cast<uint64_t>(k));
    // The largest that there can be, and others.
    for (auto& v : x) v = static_cast<int16_t>(random.below(3) == 0 ? range : -range);
    for (auto& v : w) v = static_cast<int8_t>(random.below(2) == 0 ? 127 : static_cast<int>(random.below(255)) - 127);
    std::fill(x.begin(), x.begin() + k, static_cast<int16_t>(range));
    std::fill(w.begin(), w.begin() + k, static_cast<int8_t>(127));
    std::vector<int32_t> out(static_cast<size_t>(rows * n));
    cpu::screen_rows(rows, k, x.data(), n, w.data(), out.data(), n);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        int64_t sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += int64_t{x[static_cast<size_t>(r * k + i)]} * w[static_cast<size_t>(j * k + i)];
        }
        EXPECT_EQ(out[static_cast<size_t>(r * n + j)], sum) << k;
      }
    }
  }
}

}  // namespace
}  // namespace mythos
