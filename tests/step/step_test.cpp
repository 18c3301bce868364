// One optimizer step: accumulation, clipping, what happens to a loss that is not a number, repeatability.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "kernels/cross_entropy.h"
#include "step/train_step.h"

#include <cmath>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

struct Batch {
  at::Tensor ids, targets;
  double counted = 0;
};

// Four rows of 8 positions; `counted` targets per row, the rest ignored.
Batch batch(std::array<int64_t, 4> counted = {8, 8, 8, 8}, uint64_t seed = 21) {
  Draw draw(at::kDouble, seed);
  Batch b{draw.below(61, {4, 8}), draw.below(61, {4, 8})};
  for (int64_t row = 0; row < 4; ++row) {
    const int64_t n = counted[static_cast<size_t>(row)];
    b.targets[row].narrow(0, n, 8 - n).fill_(ignored_target);
    b.counted += static_cast<double>(n);
  }
  return b;
}

Tensors copies(const std::vector<NamedTensor>& all) {
  Tensors out;
  for (const auto& n : all) out.push_back(n.tensor.clone());
  return out;
}
void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].view(at::kByte).equal(b[i].view(at::kByte))) << i;  // bytes: NaN equals itself
  }
}

struct Trained {
  explicit Trained(at::ScalarType type, const ModelConfig& config = small_config())
      : model(small_model(config, type)), optimizer(model->parameters(), {}), step(*model, optimizer) {}
  Trained(at::ScalarType compute, at::ScalarType master)
      : model(small_model(small_config(), compute, master)),
        optimizer(model->parameters(), {}),
        step(*model, optimizer) {}

  void accumulate(const Batch& b, int64_t rows, double clip = 1.0, Recompute recompute = Recompute::none) {
    step.begin({.clip = clip, .recompute = recompute, .loss_tokens = b.counted});
    for (int64_t begin = 0; begin < 4; begin += rows) {
      step.micro_step(b.ids.narrow(0, begin, rows), b.targets.narrow(0, begin, rows));
    }
  }
  [[nodiscard]] Tensors values() const { return copies(model->parameters().named_values()); }
  [[nodiscard]] Tensors state() const {
    Tensors all = values();
    for (const auto& moments : {optimizer.named_first_moments(), optimizer.named_second_moments()}) {
      for (auto& t : copies(moments)) all.push_back(t);
    }
    return all;
  }

  std::unique_ptr<Model> model;
  AdamW optimizer;
  TrainStep step;
};

// R4 with the whole model: 1 x 4, 2 x 2 and 4 x 1 rows, with as many counted targets in every row and with 1, 7, 0, 5.
TEST(TrainStep, AccumulationEqualsOneBigBatch) {
  for (const auto& counted : {std::array<int64_t, 4>{8, 8, 8, 8}, {1, 7, 0, 5}}) {
    const Batch b = batch(counted);
    for (const auto type : {at::kDouble, at::kFloat}) {
      const double tolerance = type == at::kDouble ? 1e-12 : 1e-6;
      Trained whole(type);
      whole.accumulate(b, 4);
      const Tensors grads = copies(whole.model->parameters().named_gradients());
      const StepResult expected = whole.step.finish(1e-3);
      ASSERT_TRUE(expected.updated);
      for (const int64_t rows : {1, 2}) {
        Trained parts(type);
        parts.accumulate(b, rows, 1.0, rows == 1 ? Recompute::loop : Recompute::none);
        const auto names = parts.model->parameters().named_gradients();
        for (size_t i = 0; i < grads.size(); ++i) {
          // One element is a sum over everything, of both signs: its rounding is measured against all gradients. An
          // expert's may nearly cancel, too.
          if (grads[i].numel() == 1) {
            EXPECT_NEAR(names[i].tensor.item<double>(), grads[i].item<double>(), tolerance * expected.gradient_norm);
          } else {
            EXPECT_CLOSE(names[i].tensor, grads[i], type == at::kDouble ? 3e-12 : 2e-5)
                << names[i].name << ", rows " << rows;
          }
        }
        const StepResult result = parts.step.finish(1e-3);
        EXPECT_NEAR(result.loss, expected.loss, tolerance * expected.loss);
        EXPECT_NEAR(result.gradient_norm, expected.gradient_norm, tolerance * expected.gradient_norm);
      }
    }
  }
}

TEST(TrainStep, AccumulationGivesTheSameWeights) {
  const Batch b = batch();
  for (const auto type : {at::kDouble, at::kFloat}) {
    Trained whole(type), parts(type);
    for (int step = 0; step < 2; ++step) {
      whole.accumulate(b, 4);
      parts.accumulate(b, 1);
      whole.step.finish(1e-4);
      parts.step.finish(1e-4);
    }
    const auto names = parts.model->parameters().named_values();
    const Tensors expected = whole.values();
    for (size_t i = 0; i < expected.size(); ++i) {
      // A first update is lr * g / |g|: where a gradient is near 0 its rounding is all there is, at most 2 lr a step.
      const double largest = (names[i].tensor - expected[i]).abs().max().item<double>();
      const double typical = (names[i].tensor - expected[i]).abs().mean().item<double>();
      EXPECT_LE(typical, type == at::kDouble ? 1e-12 : 1e-6) << names[i].name;
      EXPECT_LE(largest, 4.1e-4) << names[i].name;
    }
  }
}

// The loss and gradients of a batch without a counted target are zero, and the step is an ordinary one.
TEST(TrainStep, NothingCountedIsNoAccident) {
  Trained t(at::kFloat);
  t.accumulate(batch({0, 0, 0, 0}), 2);
  const StepResult result = t.step.finish(1e-3);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.gradient_norm, 0);
  EXPECT_TRUE(result.updated);
  for (const auto& v : t.values()) EXPECT_TRUE(v.isfinite().all().item<bool>());
}

TEST(TrainStep, ClipsByTheNormPlusAMillionth) {
  const Batch b = batch();
  Trained free(at::kDouble);
  free.accumulate(b, 4, 0);  // 0: never
  const Tensors grads = copies(free.model->parameters().named_gradients());
  const double norm = free.step.finish(1e-3).gradient_norm;
  const double clips[] = {norm / 8, norm + 5e-7, norm + 2e-6, 100 * norm};
  for (const double clip : clips) {
    Trained t(at::kDouble);
    t.accumulate(b, 4, clip);
    const StepResult result = t.step.finish(1e-3);
    EXPECT_NEAR(result.gradient_norm, norm, 1e-12 * norm);  // the norm before clipping
    // After one step the first moment is 0.1 g and the second 0.05 g^2.
    const double factor = std::min(1.0, clip / (norm + 1e-6));
    const auto first = t.optimizer.named_first_moments(), second = t.optimizer.named_second_moments();
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_CLOSE(first[i].tensor, grads[i] * (0.1 * factor), 1e-12) << first[i].name << " " << clip;
      EXPECT_CLOSE(second[i].tensor, grads[i].square() * (0.05 * factor * factor), 1e-12) << first[i].name;
    }
  }
  // fp32 divides inside the optimizer's kernel.
  Trained t(at::kFloat);
  t.accumulate(b, 4, norm / 8);
  t.step.finish(1e-3);
  const auto first = t.optimizer.named_first_moments();
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_CLOSE(first[i].tensor, grads[i] * (0.1 * norm / 8 / (norm + 1e-6)), 1e-3) << first[i].name;
  }
}

TEST(TrainStep, NotANumberTouchesNothing) {
  const Batch b = batch();
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const char* where :
         {"embed.weight", "recurrent.block.ffn.router.weight", "coda.1.attn.wo.weight", "norm.weight"}) {
      Trained t(at::kFloat);
      t.accumulate(b, 2);
      ASSERT_TRUE(t.step.finish(1e-3).updated);
      {
        const at::NoGradGuard no_grad;
        value(*t.model, where).flatten()[5] = bad;
      }
      const Tensors before = t.state();
      t.accumulate(b, 2);
      const StepResult result = t.step.finish(1e-3);
      EXPECT_FALSE(result.updated) << where;
      EXPECT_FALSE(std::isfinite(result.loss) && std::isfinite(result.gradient_norm)) << where;
      EXPECT_EQ(t.optimizer.steps(), 1);
      expect_same_bits(t.state(), before);
    }
  }
}

TEST(TrainStep, BeginDropsAnUnfinishedAccumulation) {
  const Batch b = batch(), other = batch({8, 8, 8, 8}, 22);
  for (const auto compute : {at::kFloat, at::kBFloat16}) {
    Trained straight(compute, at::kFloat), interrupted(compute, at::kFloat);
    straight.accumulate(b, 2);
    interrupted.step.begin({.loss_tokens = 32});
    interrupted.step.micro_step(other.ids, other.targets);
    interrupted.accumulate(b, 2);
    const StepResult expected = straight.step.finish(1e-3), result = interrupted.step.finish(1e-3);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
    expect_same_bits(interrupted.state(), straight.state());
  }
}

TEST(TrainStep, TwoRunsAgreeToTheBit) {
  for (const auto recompute : {Recompute::none, Recompute::loop}) {
    Trained one(at::kFloat), two(at::kFloat);
    for (uint64_t step = 0; step < 3; ++step) {
      const Batch b = batch({8, 8, 8, 8}, 30 + step);
      one.accumulate(b, 2, 1.0, recompute);
      two.accumulate(b, 2, 1.0, recompute);
      // An evaluation in between belongs to neither.
      const at::NoGradGuard no_grad;
      (void)two.model->loss(b.targets, b.ids, 32);
      const StepResult a = one.step.finish(1e-3), c = two.step.finish(1e-3);
      EXPECT_EQ(a.loss, c.loss);
      EXPECT_EQ(a.gradient_norm, c.gradient_norm);
    }
    expect_same_bits(one.state(), two.state());
  }
}

// An expert that no token chose has a zero gradient: its weights are decayed, its moments stay zero.
TEST(TrainStep, ExpertWithoutTokensIsOnlyDecayed) {
  Trained t(at::kFloat);
  t.model->named_buffers()[0].tensor.index_fill_(0, at::tensor({3}, at::kLong), -1000);
  const std::string expert = "recurrent.block.ffn.routed_experts.3.", busy = "recurrent.block.ffn.routed_experts.2.";
  const at::Tensor before = value(*t.model, expert + "up.weight").clone();
  for (int step = 0; step < 2; ++step) {
    t.accumulate(batch(), 2);
    ASSERT_TRUE(t.step.finish(0.01).updated);
  }
  for (const char* part : {"gate.weight", "up.weight", "down.weight"}) {
    EXPECT_EQ(named(t.optimizer.named_first_moments(), expert + part).abs().max().item<double>(), 0);
    EXPECT_EQ(named(t.optimizer.named_second_moments(), expert + part).abs().max().item<double>(), 0);
    EXPECT_GT(named(t.optimizer.named_first_moments(), busy + part).abs().max().item<double>(), 0);
  }
  EXPECT_CLOSE(value(*t.model, expert + "up.weight"), before * std::pow(1 - 0.01 * 0.1, 2), 1e-6);
}

TEST(TrainStep, Bfloat16TrainsItsFloatMaster) {
  Trained narrow(at::kBFloat16, at::kFloat), wide(at::kFloat);
  const Batch b = batch();
  std::array<double, 6> losses{};
  for (double& loss : losses) {
    narrow.accumulate(b, 2);
    wide.accumulate(b, 2);
    loss = narrow.step.finish(3e-3).loss;
    EXPECT_NEAR(loss, wide.step.finish(3e-3).loss, 0.1);
  }
  EXPECT_LT(losses.back(), losses.front() - 0.2);
}

// M1
TEST(TrainStep, TheRoutersBiasMovesAgainstTheLoad) {
  const auto b = batch();
  constexpr double speed = 0.25;
  for (const auto recompute : {Recompute::none, Recompute::loop}) {
    const auto model = small_model(small_config(), at::kDouble);
    AdamW optimizer(model->parameters(), {});
    TrainStep step(*model, optimizer, nullptr, speed);
    const at::Tensor bias = model->router_bias();
    bias.zero_();
    bias[3].fill_(4);  // nearly always chosen
    for (int i = 0; i < 10; ++i) {
      at::Tensor counts = at::zeros({5}, at::kLong);
      const LoopObserver count = [&](const LoopReport& r) { counts += r.experts.flatten().bincount({}, 5); };
      const at::Tensor before = bias.clone();
      step.begin({.recompute = recompute, .observer = &count, .loss_tokens = b.counted});
      for (int64_t row = 0; row < 4; row += 2) step.micro_step(b.ids.narrow(0, row, 2), b.targets.narrow(0, row, 2));
      ASSERT_TRUE(step.finish(0).updated);
      EXPECT_TRUE(i > 0 || counts.argmax().item<int64_t>() == 3);
      for (int64_t e = 0; e < 5; ++e) {
        const double mean = counts.sum().item<double>() / 5, n = counts[e].item<double>();
        const double expected = n > mean ? -speed : n < mean ? speed : 0;
        EXPECT_NEAR((bias[e] - before[e]).item<double>(), expected, 1e-15) << "step " << i << ", expert " << e;
      }
    }
    EXPECT_LT(bias[3].item<double>(), 4 - 5 * speed);
  }
  // A step that is left out, and the reference's way: it stays.
  for (const double speed_here : {speed, 0.0}) {
    const auto model = small_model(small_config(), at::kDouble);
    AdamW optimizer(model->parameters(), {});
    TrainStep step(*model, optimizer, nullptr, speed_here);
    const at::Tensor before = model->router_bias().clone();
    step.begin({.loss_tokens = b.counted});
    step.micro_step(b.ids, b.targets);
    if (speed_here > 0) model->parameters().gradients(0)[5].fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(step.finish(1e-3).updated, speed_here == 0);
    EXPECT_TRUE(model->router_bias().equal(before));
  }
}

}  // namespace
}  // namespace mythos
