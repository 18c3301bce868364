// The loop: injection, halting, loops beyond the trained ones, early stop, recomputation.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "base/error.h"

#include <cmath>
#include <set>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// ---- injection ------------------------------------------------------------------------------------------------------

// L4: exp(-exp(-20)) rounds to 1 in fp32; the clamp at -16 keeps A below 1.
TEST(InjectionDecay, StaysBelowOneAndKeepsItsGradientFinite) {
  const double sums[] = {-1e4, -20, -16, -15, 0, 20, 1e4};
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor log_dt = at::full({1}, 0.0, type);
    const at::Tensor log_a = leaf(at::tensor(at::ArrayRef<double>(sums), at::kDouble).to(type));
    const at::Tensor a = injection_decay(log_a, log_dt);
    EXPECT_EQ(a.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_TRUE(a.ge(0).all().item<bool>());
    EXPECT_TRUE(a.lt(1).all().item<bool>()) << a;
    const at::Tensor grad = gradients({a}, {log_a}, {at::ones_like(a)})[0];
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << grad;
    // -1e4 and -20 are clamped to -16, -15 is not.
    EXPECT_EQ(a[0].item<double>(), a[2].item<double>());
    EXPECT_EQ(a[1].item<double>(), a[2].item<double>());
    EXPECT_LT(a[3].item<double>(), a[2].item<double>());
    EXPECT_NEAR(a[2].item<double>(), std::exp(-std::exp(-16.0)), 1e-7);
    EXPECT_NEAR(a[4].item<double>(), std::exp(-1.0), 1e-7);
    EXPECT_EQ(a[5].item<double>(), 0);
    EXPECT_EQ(a[6].item<double>(), 0);
  }
  // The upper bound, where A is still above zero only in theory: fp64's exp(-exp(6)) against the clamp's exponent.
  const at::Tensor six = at::full({1}, 6.0, at::kDouble);
  EXPECT_NEAR(injection_decay(six, at::zeros({1}, at::kDouble)).item<double>(), std::exp(-std::exp(6.0)), 1e-180);
}

TEST(InjectionDecay, AddsTheStepToEveryChannel) {
  const at::Tensor log_a = at::tensor({-1.0, 0.5}, at::kDouble), log_dt = at::tensor({0.25}, at::kDouble);
  const at::Tensor a = injection_decay(log_a, log_dt);
  EXPECT_NEAR(a[0].item<double>(), std::exp(-std::exp(-0.75)), 1e-15);
  EXPECT_NEAR(a[1].item<double>(), std::exp(-std::exp(0.75)), 1e-15);
}

TEST(LoopSignal, IsSineThenCosineOfTheFirstEighth) {
  const at::Tensor s = loop_signal(3, 64, at::TensorOptions(at::kDouble));  // 8 channels, 4 frequencies
  for (int64_t i = 0; i < 4; ++i) {
    const double angle = 3 * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
    EXPECT_NEAR(s[i].item<double>(), std::sin(angle), 1e-14);
    EXPECT_NEAR(s[i + 4].item<double>(), std::cos(angle), 1e-14);
  }
  EXPECT_EQ(s.narrow(0, 8, 56).abs().max().item<double>(), 0);
  EXPECT_EQ(loop_signal(3, 7, at::TensorOptions(at::kFloat)).abs().max().item<double>(), 0);  // no eighth
  EXPECT_EQ(loop_signal(3, 64, at::TensorOptions(at::kBFloat16)).scalar_type(), at::kFloat);
}

// ---- halting --------------------------------------------------------------------------------------------------------

HaltingState state_of(double cumulative, bool halted) {
  return {at::full({1, 1}, cumulative, at::kDouble), at::full({1, 1}, halted, at::kBool)};
}

TEST(HaltingWeight, ReachingTheThresholdExactlyHalts) {
  const double p = 0.25;  // 0.5 + 0.25 is 0.75 exactly
  HaltingState exact = state_of(0.5, false);
  EXPECT_EQ(halting_weight(at::full({1, 1}, p, at::kDouble), 0.75, exact).item<double>(), 0.5);  // the remainder
  EXPECT_TRUE(exact.halted.item<bool>());
  EXPECT_EQ(exact.cumulative.item<double>(), 0.75);

  const double less = 0.25 - 0x1p-40;
  HaltingState below = state_of(0.5, false);
  EXPECT_EQ(halting_weight(at::full({1, 1}, less, at::kDouble), 0.75, below).item<double>(), less);
  EXPECT_FALSE(below.halted.item<bool>());
}

TEST(HaltingWeight, RemainderIsNeverNegative) {
  HaltingState above = state_of(1.25, false);
  EXPECT_EQ(halting_weight(at::full({1, 1}, 0.5, at::kDouble), 1.5, above).item<double>(), 0);
}

TEST(HaltingWeight, HaltedPositionsWeighNothingAndCollectNothing) {
  HaltingState halted = state_of(0.9, true);
  EXPECT_EQ(halting_weight(at::full({1, 1}, 0.5, at::kDouble), 0.99, halted).item<double>(), 0);
  EXPECT_EQ(halted.cumulative.item<double>(), 0.9);
  EXPECT_TRUE(halted.halted.item<bool>());
}

struct Watched {
  std::vector<LoopReport> reports;
  LoopObserver observer = [this](const LoopReport& r) { reports.push_back(r); };
};

class Loop : public testing::Test {
 protected:
  explicit Loop(const ModelConfig& config = small_config()) : model_(small_model(config, at::kDouble)) { use(*model_); }

  void use(const Model& model) {
    block_ = std::make_unique<RecurrentBlock>(model.config(), model.parameters(), model.named_buffers()[0].tensor);
  }
  void set(std::string_view name, double x) {
    const at::NoGradGuard no_grad;
    value(*model_, name).fill_(x);
  }
  // Halting probabilities near sigmoid(bias), a little different everywhere.
  void halt_near(double bias) {
    const at::NoGradGuard no_grad;
    value(*model_, "recurrent.act.halt.weight").mul_(0.2);
    value(*model_, "recurrent.act.halt.bias").fill_(bias);
  }
  at::Tensor forward(int64_t loops, Watched* watched = nullptr, KvCache* cache = nullptr) {
    const at::NoGradGuard no_grad;
    const auto& c = model_->config();
    const auto rows = RotaryTable(c.rotary_dim(), c.rope_theta, at::kCPU).slice(0, e_.size(1));
    return block_->forward(e_, loops, Places(rows, cache), Recompute::none,
                           watched != nullptr ? &watched->observer : nullptr);
  }
  static at::Tensor weighted_sum(const Watched& watched) {
    at::Tensor sum = at::zeros_like(watched.reports.at(0).state);
    for (const auto& r : watched.reports) sum += r.weight.unsqueeze(-1) * r.state;
    return sum;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<RecurrentBlock> block_;
  at::Tensor e_ = Draw(at::kDouble, 3).normal({2, 7, 32});
};

// L3: what never reaches the threshold keeps the plain sum of its weights.
TEST_F(Loop, NeverHaltingKeepsThePlainWeightedSum) {
  set("recurrent.act.halt.weight", 0);
  for (const double bias : {-20.0, -3.0}) {
    set("recurrent.act.halt.bias", bias);
    Watched watched;
    const at::Tensor out = forward(4, &watched);
    ASSERT_EQ(watched.reports.size(), 4U);
    const double p = 1 / (1 + std::exp(-bias));
    at::Tensor plain = at::zeros_like(e_);
    for (const auto& r : watched.reports) {
      EXPECT_CLOSE(r.weight, at::full_like(r.weight, p), 1e-12);
      plain += p * r.state;
    }
    EXPECT_CLOSE(out, plain, 1e-12);
  }
}

TEST_F(Loop, WeightsOfAHaltingPositionSumToOne) {
  halt_near(0.0);
  Watched watched;
  const at::Tensor out = forward(9, &watched);
  at::Tensor mass = at::zeros({2, 7}, at::kDouble);
  std::set<int64_t> halted_at;
  for (const auto& r : watched.reports) {
    mass += r.weight;
    for (int64_t i = 0; i < 14; ++i) {
      if (r.weight.flatten()[i].item<double>() > 0 && mass.flatten()[i].item<double>() > 1 - 1e-9)
        halted_at.insert(r.loop);
    }
  }
  EXPECT_CLOSE(mass, at::ones({2, 7}), 1e-12);
  EXPECT_GT(halted_at.size(), 1U) << "the test wants positions that halt at different loops";
  EXPECT_CLOSE(out, weighted_sum(watched), 1e-12);
}

TEST_F(Loop, StoppingEarlyGivesWhatAllLoopsGive) {
  for (const auto& [bias, most] : {std::pair{20.0, 1}, {1.0, 8}}) {
    halt_near(bias);
    Watched early, all;
    KvCache cache;
    const at::Tensor stopped = forward(9, &early);
    const at::Tensor full = forward(9, &all, &cache);  // with a cache every loop runs
    EXPECT_LE(early.reports.size(), static_cast<size_t>(most));
    EXPECT_EQ(all.reports.size(), 9U);
    EXPECT_CLOSE(stopped, full, 1e-14);  // with a cache some products have other shapes
    EXPECT_CLOSE(full, weighted_sum(all), 1e-12);
  }
  // One position that runs on keeps all loops running.
  set("recurrent.act.halt.bias", -20.0);
  Watched watched;
  forward(9, &watched);
  EXPECT_EQ(watched.reports.size(), 9U);
}

// L1: more loops than the table of scales has rows.
TEST_F(Loop, LoopsBeyondTheTrainedOnesReuseTheLastScale) {
  set("recurrent.act.halt.weight", 0);
  set("recurrent.act.halt.bias", -20.0);
  const at::Tensor out = forward(7);
  EXPECT_TRUE(out.isfinite().all().item<bool>());

  ModelConfig longer = small_config();
  longer.max_loop_iters = 7;
  const auto other = small_model(longer, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : model_->parameters().named_values()) {
      if (name != "recurrent.lora.scale.weight") value(*other, name).copy_(tensor);
    }
    const at::Tensor rows = value(*model_, "recurrent.lora.scale.weight");
    value(*other, "recurrent.lora.scale.weight").copy_(at::cat({rows, rows[3].expand({3, 3})}));
  }
  use(*other);
  EXPECT_TRUE(forward(7).equal(out));
  {
    const at::NoGradGuard no_grad;
    value(*other, "recurrent.lora.scale.weight")[5].mul_(2);
  }
  EXPECT_FALSE(forward(7).equal(out));
}

TEST(Loops, ZeroMeansTheModelsAndFewerThanOneIsRefused) {
  const auto model = small_model(small_config(), at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = Draw(at::kDouble).below(61, {1, 5});
  EXPECT_TRUE(model->hidden(ids).equal(model->hidden(ids, {.n_loops = 4})));
  EXPECT_FALSE(model->hidden(ids).equal(model->hidden(ids, {.n_loops = 1})));
  for (const int64_t loops : {-1, -100}) {
    EXPECT_THROW(model->hidden(ids, {.n_loops = loops}), Error) << loops;
  }
}

// ---- recomputation --------------------------------------------------------------------------------------------------

struct LossAndGradients {
  at::Tensor loss;
  std::vector<NamedTensor> grads;
};

LossAndGradients backward(Model& model, Recompute recompute, const LoopObserver* observer = nullptr) {
  model.parameters().zero_gradients();
  Draw draw(at::kDouble, 9);
  const at::Tensor ids = draw.below(61, {2, 9}), targets = draw.below(61, {2, 9});
  const at::Tensor loss = model.loss(ids, targets, 18, {.recompute = recompute, .observer = observer});
  torch::autograd::backward({loss}, {});
  auto grads = model.parameters().named_gradients();
  for (auto& g : grads) g.tensor = g.tensor.clone();
  return {loss.detach(), std::move(grads)};
}

TEST(Recomputation, GivesTheSameLossAndGradients) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      const auto model = small_model(small_config(attention), type);
      const auto kept = backward(*model, Recompute::none);
      const auto again = backward(*model, Recompute::loop);
      EXPECT_TRUE(kept.loss.equal(again.loss));
      for (size_t i = 0; i < kept.grads.size(); ++i) {
        EXPECT_GT(kept.grads[i].tensor.abs().max().item<double>(), 0) << kept.grads[i].name;
        EXPECT_CLOSE(again.grads[i].tensor, kept.grads[i].tensor, type == at::kDouble ? 1e-12 : 1e-6)
            << kept.grads[i].name;
      }
    }
  }
}

// M2: the second run of a loop must not count its experts again.
TEST(Recomputation, ExpertsAreCountedOnce) {
  const auto model = small_model(small_config(), at::kFloat);
  {
    const at::NoGradGuard no_grad;
    value(*model, "recurrent.act.halt.bias").fill_(-20);  // all loops run
  }
  for (const auto recompute : {Recompute::none, Recompute::loop}) {
    at::Tensor counts = at::zeros({5}, at::kLong);
    const LoopObserver observer = [&](const LoopReport& r) { counts += r.experts.flatten().bincount({}, 5); };
    for (int step = 0; step < 2; ++step) {
      backward(*model, recompute, &observer);
      const at::NoGradGuard no_grad;  // an evaluation in between counts nothing: it has no observer
      (void)model->hidden(Draw(at::kDouble).below(61, {1, 5}));
    }
    EXPECT_EQ(counts.sum().item<int64_t>(), 2 * (2 * 9) * 2 * 4);  // steps x tokens x top-k x loops
  }
}

// The whole model's gradient is the derivative of its loss, with and without recomputation.
TEST(Recomputation, WholeModelDerivatives) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    const auto model = small_model(small_config(attention), at::kDouble);
    const auto exact = backward(*model, Recompute::loop);
    const auto values = model->parameters().named_values();
    Draw draw(at::kDouble, 9), direction(at::kDouble, 10);
    const at::Tensor ids = draw.below(61, {2, 9}), targets = draw.below(61, {2, 9});
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor along = direction.normal(values[i].tensor.sizes());
      const at::Tensor before = values[i].tensor.clone();
      constexpr double step = 1e-6;
      values[i].tensor.add_(along, step);
      const double above = model->loss(ids, targets, 18).item<double>();
      values[i].tensor.copy_(before).sub_(along, step);
      const double below = model->loss(ids, targets, 18).item<double>();
      values[i].tensor.copy_(before);
      const double expected = (exact.grads[i].tensor * along).sum().item<double>();
      const double scale = (exact.grads[i].tensor * along).abs().sum().item<double>();
      EXPECT_NEAR((above - below) / (2 * step), expected, 1e-5 * scale + 1e-8) << values[i].name;
    }
  }
}

}  // namespace
}  // namespace mythos
