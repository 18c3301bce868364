// Rows of logits in place, by the source of the device's kernel: what the twins of the whole op do not see.
#include "../support/tensors.h"

#include "kernels/cross_entropy.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

#include <cmath>
#include <limits>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr double inf = std::numeric_limits<double>::infinity();

// A device cannot throw: a target that is no class makes the loss NaN, and nothing beyond the row is written.
TEST(CrossEntropyOnHost, TargetsThatAreNoClassGiveNaNAndAreNotWrittenTo) {
  const cuda::OnHost host;
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Draw draw(type);
    for (const int64_t bad : {int64_t{9}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      const at::Tensor all = draw.normal({3, 9}), before = all.clone();
      const at::Tensor losses = at::full({1}, 7.0, at::kDouble);
      cuda::cross_entropy(all.narrow(0, 1, 1), at::full({1}, bad, at::kLong), losses, 0.5, true);
      EXPECT_TRUE(std::isnan(losses.item<double>()));
      EXPECT_EQ(all[1].abs().max().item<double>(), 0);
      EXPECT_TRUE(all[0].equal(before[0]) && all[2].equal(before[2]));
    }
  }
}

TEST(CrossEntropyOnHost, WithoutGradientsLogitsStayAsTheyAre) {
  const cuda::OnHost host;
  Draw draw(at::kFloat);
  const at::Tensor logits = draw.normal({3, 101}), before = logits.clone(), targets = draw.below(101, {3});
  const at::Tensor losses = at::empty({3}, at::kDouble);
  cuda::cross_entropy(logits, targets, losses, 1, false);
  EXPECT_TRUE(logits.equal(before));
  EXPECT_CLOSE(losses, at::cross_entropy_loss(before.to(at::kDouble), targets, {}, at::Reduction::None), 1e-6);
}

TEST(CrossEntropyOnHost, LogitsThatAreNotFiniteOrHuge) {
  const cuda::OnHost host;
  const auto loss = [](const at::Tensor& logits, int64_t target) {
    const at::Tensor out = at::empty({1}, at::kDouble), copy = logits.clone();
    cuda::cross_entropy(copy, at::full({1}, target, at::kLong), out, 1, true);
    return std::pair{out.item<double>(), copy};
  };
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Draw draw(type);
    for (const int64_t place : {0, 1, 15, 16, 37}) {
      for (const double bad : {std::nan(""), inf}) {
        const at::Tensor logits = draw.normal({1, 38});
        logits[0][place] = bad;
        for (const int64_t target : {0, 16, 37}) EXPECT_FALSE(std::isfinite(loss(logits, target).first));
      }
      const at::Tensor logits = draw.normal({1, 38});
      logits[0][place] = -inf;
      const auto [value, gradient] = loss(logits, 5);
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_EQ(gradient[0][place].item<double>(), 0);
      EXPECT_EQ(loss(logits, place).first, inf);
    }
    EXPECT_FALSE(std::isfinite(loss(at::full({1, 5}, -inf, type), 2).first));
  }
  const at::Tensor large = at::tensor({1e4, -1e4, 9.9e3, 0.0}, at::kFloat).unsqueeze(0);
  const double losses[] = {0, 2e4, 100, 1e4};
  for (int64_t target = 0; target < 4; ++target) EXPECT_NEAR(loss(large, target).first, losses[target], 1e-3);
}

TEST(CrossEntropyChunk, DevicesTakeMore) {
  EXPECT_EQ(cross_entropy_chunk_rows(200000, 65536, at::kCUDA, 2), 2992);  // 22 chunks of at most 3,120
  EXPECT_EQ(cross_entropy_chunk_rows(200000, 2048, at::kCUDA, 2), 2048);
  EXPECT_EQ(cross_entropy_chunk_rows(200000, 65536, at::kCUDA, 4), 1536);  // 43 chunks of at most 1,552
  EXPECT_EQ(cross_entropy_chunk_rows(1 << 24, 1 << 20, at::kCUDA, 4), 64);
}

}  // namespace
}  // namespace mythos
