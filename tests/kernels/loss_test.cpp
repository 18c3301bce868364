// The head with cross-entropy: chunks, ignored targets, denominators, values that are not numbers.
#include "../support/tensors.h"

#include "kernels/cross_entropy.h"
#include "kernels/rms_norm.h"

#include <cmath>
#include <limits>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr at::ScalarType types[] = {at::kDouble, at::kFloat};

struct LossAndGradients {
  at::Tensor loss, hidden, weight;
};

LossAndGradients run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double denominator,
                     int64_t chunk) {
  const at::Tensor h = leaf(hidden), w = leaf(weight);
  const at::Tensor loss = linear_cross_entropy(h, {w, {}}, targets, denominator, chunk);
  const Tensors grads = gradients({loss}, {h, w}, {at::ones_like(loss)});
  return {loss, grads[0], grads[1]};
}

TEST(LinearCrossEntropy, EveryChunkGivesWhatAllLogitsAtOnceGive) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t n : {1, 2, 15, 33}) {
      for (const int64_t v : {2, 15, 16, 17, 1024, 1025, 5000}) {
        const at::Tensor targets = draw.below(v, {n});
        if (n > 1) targets[1] = ignored_target;
        const at::Tensor hidden = draw.normal({n, 7}), weight = draw.normal({v, 7});
        const at::Tensor h = leaf(hidden), w = leaf(weight);
        const at::Tensor dense = linear_cross_entropy_reference(h, w, targets, 3.0);
        const Tensors grads = gradients({dense}, {h, w}, {at::ones_like(dense)});
        for (const int64_t chunk : {int64_t{1}, int64_t{7}, n, int64_t{0}}) {
          const auto r = run(hidden, weight, targets, 3.0, chunk);
          const std::string what = fmt::format("N {} V {} chunk {}", n, v, chunk);
          EXPECT_CLOSE(r.loss, dense, rounding(type)) << what;
          EXPECT_CLOSE(r.hidden, grads[0], rounding(type)) << what;
          EXPECT_CLOSE(r.weight, grads[1], rounding(type)) << what;
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, TakesStridedHiddenStatesAndOtherFactors) {
  Draw draw(at::kDouble);
  const at::Tensor h = leaf(draw.transposed({9, 5})), w = leaf(draw.normal({11, 5}));
  ASSERT_FALSE(h.is_contiguous());
  const at::Tensor targets = draw.below(11, {9});
  const at::Tensor factor = at::full({}, 2.5, at::kDouble);
  const Tensors actual = gradients({linear_cross_entropy(h, {w, {}}, targets, 9, 4)}, {h, w}, {factor});
  const Tensors expected = gradients({linear_cross_entropy_reference(h, w, targets, 9)}, {h, w}, {factor});
  EXPECT_CLOSE(actual[0], expected[0], 1e-12);
  EXPECT_CLOSE(actual[1], expected[1], 1e-12);
}

// R5: a micro-batch without a counted target.
TEST(LinearCrossEntropy, AllTargetsIgnoredGiveZeroWithoutNaN) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Draw draw(type);
    for (const double denominator : {0.0, 13.0}) {
      const auto r =
          run(draw.normal({6, 5}), draw.normal({9, 5}), at::full({6}, ignored_target, at::kLong), denominator, 4);
      EXPECT_EQ(r.loss.item<double>(), 0);
      EXPECT_EQ(r.hidden.abs().max().item<double>(), 0);  // false for NaN
      EXPECT_EQ(r.weight.abs().max().item<double>(), 0);
    }
  }
}

// R4: micro-batches with 1, 7, 0 and 5 counted targets.
TEST(LinearCrossEntropy, LossDoesNotDependOnTheSplitIntoMicroBatches) {
  for (const auto type : types) {
    Draw draw(type);
    const at::Tensor hidden = draw.normal({4, 8, 5}), weight = draw.normal({11, 5});
    const at::Tensor targets = draw.below(11, {4, 8});
    const int64_t counted[] = {1, 7, 0, 5};
    for (int64_t row = 0; row < 4; ++row) targets[row].narrow(0, counted[row], 8 - counted[row]).fill_(ignored_target);

    const auto in_parts = [&](int64_t rows) {
      const at::Tensor h = leaf(hidden);
      const Weight w{leaf(weight), at::zeros_like(weight)};
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (int64_t begin = 0; begin < 4; begin += rows) {
        const at::Tensor part = linear_cross_entropy(h.narrow(0, begin, rows).reshape({-1, 5}), w,
                                                     targets.narrow(0, begin, rows).reshape({-1}), 13, 3);
        torch::autograd::backward({part}, {});
        loss += part.detach();
      }
      return LossAndGradients{loss, h.grad(), w.grad};
    };
    const auto whole = in_parts(4);
    EXPECT_CLOSE(whole.loss,
                 linear_cross_entropy_reference(hidden.view({-1, 5}), weight, targets.view(-1), 13).to(at::kDouble),
                 rounding(type));
    for (const int64_t rows : {1, 2}) {
      const auto parts = in_parts(rows);
      EXPECT_CLOSE(parts.loss, whole.loss, rounding(type)) << rows;
      EXPECT_CLOSE(parts.hidden, whole.hidden, rounding(type)) << rows;
      EXPECT_CLOSE(parts.weight, whole.weight, rounding(type)) << rows;
    }
  }
}

TEST(LinearCrossEntropy, NotANumberAndInfinityNeverGiveAFiniteLoss) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Draw draw(type);
    for (const double bad : {std::nan(""), inf}) {
      for (const int64_t place : {0, 1, 15, 16, 37}) {  // of 38 logits: first, in the lanes, in the rest
        for (const int64_t target : {0, 16, 37}) {
          // One channel, hidden 1: the weights are the logits.
          const at::Tensor weight = draw.normal({38, 1});
          weight[place] = bad;
          const at::Tensor targets = at::full({1}, target, at::kLong);
          const auto r = run(at::ones({1, 1}, type), weight, targets, 1, 0);
          EXPECT_FALSE(std::isfinite(r.loss.item<double>())) << bad << " at " << place << ", target " << target;
        }
      }
    }
    const at::Tensor weight = draw.normal({38, 1});
    weight[5] = -inf;  // a class ruled out is fine, unless it is the target
    EXPECT_TRUE(
        std::isfinite(run(at::ones({1, 1}, type), weight, at::full({1}, 4, at::kLong), 1, 0).loss.item<double>()));
    EXPECT_FALSE(
        std::isfinite(run(at::ones({1, 1}, type), weight, at::full({1}, 5, at::kLong), 1, 0).loss.item<double>()));
  }
}

TEST(LinearCrossEntropy, LargeLogitsStayFinite) {
  for (const auto type : types) {
    const at::Tensor logits = at::tensor({1e4, -1e4, 9.9e3, 0.0}, at::kDouble).to(type).unsqueeze(1);
    const double losses[] = {0, 2e4, 100, 1e4};
    for (int64_t target = 0; target < 4; ++target) {
      const auto r = run(at::ones({1, 1}, type), logits, at::full({1}, target, at::kLong), 1, 0);
      EXPECT_NEAR(r.loss.item<double>(), losses[target], 1e-3);
      EXPECT_TRUE(r.hidden.isfinite().all().item<bool>());
      EXPECT_NEAR(r.weight.sum().item<double>(), 0, 1e-6);
    }
  }
}

TEST(LinearCrossEntropy, TargetsOutsideTheVocabularyAreRefused) {
  Draw draw(at::kFloat);
  for (const int64_t bad : {int64_t{9}, int64_t{-1}, int64_t{-99}, std::numeric_limits<int64_t>::max()}) {
    const Weight w{leaf(draw.normal({9, 5})), at::zeros({9, 5})};
    const at::Tensor targets = at::tensor({int64_t{2}, bad, ignored_target});
    EXPECT_THROW(linear_cross_entropy(draw.normal({3, 5}), w, targets, 2), c10::IndexError) << bad;
    EXPECT_EQ(w.grad.abs().max().item<double>(), 0);
  }
}

// Normalised states against a fresh tied table: E[log sum exp] = ln V + D * 0.02^2 / 2, and the target's logit is 0 on
// average. With D 1,024 and V 512: 6.238 + 0.205, standard deviation 0.014.
TEST(LinearCrossEntropy, FirstLossOfFreshWeights) {
  Draw draw(at::kFloat);
  const at::Tensor hidden = rms_norm(draw.normal({2048, 1024}), {at::ones({1024}), {}});
  const at::Tensor loss =
      linear_cross_entropy(hidden, {draw.normal({512, 1024}, 0.02), {}}, draw.below(512, {2048}), 2048);
  EXPECT_NEAR(loss.item<double>(), std::log(512.0) + 1024 * 0.02 * 0.02 / 2, 0.06);
}

TEST(CrossEntropyChunk, EqualChunksOfBoundedSize) {
  EXPECT_EQ(cross_entropy_chunk_rows(199998, 2048), 256);
  EXPECT_EQ(cross_entropy_chunk_rows(199998, 300), 160);
  EXPECT_EQ(cross_entropy_chunk_rows(32000, 8192), 1024);
  EXPECT_EQ(cross_entropy_chunk_rows(32000, 1), 16);
  EXPECT_EQ(cross_entropy_chunk_rows(1 << 24, 1 << 20), 64);
}

}  // namespace
}  // namespace mythos
