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
      {"numbers too small to divide by", plain * 1e-41},
      {"large numbers", plain * 1e18},
  };
  for (const auto& [what, weight] : weights) {
    for (const int64_t k : {1, 3, 50, 2499, 2500, 9000}) expect_exact(what, weight, hidden, k);
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
