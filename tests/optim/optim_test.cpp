// Learning rates, AdamW against a scalar implementation, the gradient norm.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "optim/adamw.h"
#include "optim/schedule.h"

#include <cmath>
#include <numbers>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// ---- schedule -------------------------------------------------------------------------------------------------------

// R1: the log's step n uses the rate of step n - 1.
TEST(Schedule, GivesTheRatesOfTheArticlesLog) {
  const Schedule s{.kind = ScheduleKind::cosine, .peak = 6e-4, .floor = 6e-5, .warmup = 300, .total = 5744};
  const std::pair<int64_t, const char*> logged[] = {{10, "1.80e-05"},  {50, "9.80e-05"},  {100, "1.98e-04"},
                                                    {200, "3.98e-04"}, {800, "5.89e-04"}, {3200, "3.02e-04"},
                                                    {5744, "6.00e-05"}};
  for (const auto& [step, rate] : logged) EXPECT_EQ(fmt::format("{:.2e}", s.rate(step - 1)), rate) << step;
}

TEST(Schedule, EqualsItsClosedFormAtEveryStep) {
  const Schedule s{.kind = ScheduleKind::cosine, .peak = 6e-4, .floor = 6e-5, .warmup = 300, .total = 5744};
  for (int64_t step = 0; step <= 6000; ++step) {
    const auto x = static_cast<double>(step);
    const double expected =
        step < 300    ? 6e-4 * x / 300
        : step < 5744 ? 6e-5 + 0.5 * (6e-4 - 6e-5) * (1 + std::cos(std::numbers::pi * (x - 300) / (5744 - 300)))
                      : 6e-5;
    ASSERT_NEAR(s.rate(step), expected, 1e-15) << step;
  }
  EXPECT_EQ(s.rate(0), 0);
  EXPECT_EQ(s.rate(300), 6e-4);
}

TEST(Schedule, OtherShapesAndEnds) {
  const Schedule line{.kind = ScheduleKind::linear, .peak = 1, .floor = 0.5, .warmup = 0, .total = 10};
  EXPECT_EQ(line.rate(0), 1);
  EXPECT_NEAR(line.rate(5), 0.75, 1e-15);
  EXPECT_EQ(line.rate(10), 0.5);
  EXPECT_EQ(line.rate(1000), 0.5);
  const Schedule flat{.kind = ScheduleKind::constant, .peak = 1, .floor = 0.5, .warmup = 4, .total = 10};
  EXPECT_EQ(flat.rate(2), 0.5);
  EXPECT_EQ(flat.rate(1000), 1);
  for (const int64_t total : {0, 3, 10}) {  // a run no longer than its warm-up
    const Schedule brief{.kind = ScheduleKind::cosine, .peak = 1, .floor = 0.5, .warmup = 10, .total = total};
    for (int64_t step = 0; step < 12; ++step) EXPECT_TRUE(std::isfinite(brief.rate(step)));
    EXPECT_EQ(brief.rate(9), 0.9);
    EXPECT_EQ(brief.rate(10), 0.5);
  }
}

// ---- AdamW ----------------------------------------------------------------------------------------------------------

// One element, as the paper writes it.
struct Scalar {
  double value, first = 0, second = 0;
  void step(double gradient, double lr, double decay, int64_t t, const AdamWOptions& o) {
    first = o.beta1 * first + (1 - o.beta1) * gradient;
    second = o.beta2 * second + (1 - o.beta2) * gradient * gradient;
    const double m = first / (1 - std::pow(o.beta1, static_cast<double>(t)));
    const double v = second / (1 - std::pow(o.beta2, static_cast<double>(t)));
    value = value * (1 - lr * decay) - lr * m / (std::sqrt(v) + o.eps);
  }
};

void check_against_scalars(at::ScalarType type, bool decay_vectors) {
  const auto model = small_model(small_config(), type);
  ParameterStore& store = model->parameters();
  const AdamWOptions options{.decay_vectors = decay_vectors};
  AdamW optimizer(store, options);
  std::vector<std::vector<Scalar>> expected;
  for (const auto& p : store.named_values()) {
    const at::Tensor flat = p.tensor.detach().to(at::kDouble).flatten().contiguous();
    std::vector<Scalar> list;
    for (int64_t i = 0; i < flat.numel(); ++i) list.push_back({flat.const_data_ptr<double>()[i]});
    expected.push_back(std::move(list));
  }
  Draw draw(type, 6);
  const double divisors[] = {1.0, 3.0, 1.25, 1.0};
  for (int64_t t = 1; t <= 4; ++t) {
    const double lr = 0.01 / static_cast<double>(t), divisor = divisors[t - 1];
    const auto grads = store.named_gradients();
    for (size_t p = 0; p < grads.size(); ++p) {
      grads[p].tensor.copy_(draw.normal(grads[p].tensor.sizes()));
      const double decay = decay_vectors || grads[p].tensor.dim() > 1 ? options.weight_decay : 0;
      const at::Tensor g = grads[p].tensor.to(at::kDouble).flatten().contiguous();
      for (size_t i = 0; i < expected[p].size(); ++i) {
        expected[p][i].step(g.const_data_ptr<double>()[i] / divisor, lr, decay, t, options);
      }
    }
    optimizer.step(lr, divisor);
    EXPECT_EQ(optimizer.steps(), t);
  }
  const double tolerance = type == at::kDouble ? 1e-13 : 1e-6;
  const auto values = store.named_values();
  const auto first = optimizer.named_first_moments(), second = optimizer.named_second_moments();
  for (size_t p = 0; p < values.size(); ++p) {
    at::Tensor v = at::empty_like(values[p].tensor, at::kDouble), m = at::empty_like(v), s = at::empty_like(v);
    for (size_t i = 0; i < expected[p].size(); ++i) {
      v.mutable_data_ptr<double>()[i] = expected[p][i].value;
      m.mutable_data_ptr<double>()[i] = expected[p][i].first;
      s.mutable_data_ptr<double>()[i] = expected[p][i].second;
    }
    EXPECT_CLOSE(values[p].tensor, v, tolerance) << values[p].name;
    EXPECT_CLOSE(first[p].tensor, m, tolerance) << values[p].name;
    EXPECT_CLOSE(second[p].tensor, s, tolerance) << values[p].name;
  }
}

TEST(AdamW, EqualsAScalarImplementationInFloat64) { check_against_scalars(at::kDouble, true); }
TEST(AdamW, EqualsAScalarImplementationInFloat32) { check_against_scalars(at::kFloat, true); }
TEST(AdamW, ExemptsVectorsFromDecay) {
  check_against_scalars(at::kDouble, false);
  check_against_scalars(at::kFloat, false);
}

TEST(AdamW, WithoutVectorDecayOnlyVectorsKeepTheirLength) {
  const auto model = small_model(small_config(), at::kFloat);
  AdamW optimizer(model->parameters(), {.decay_vectors = false});
  Tensors before;
  for (const auto& p : model->parameters().named_values()) before.push_back(p.tensor.clone());
  model->parameters().zero_gradients();
  optimizer.step(0.1, 1.0);
  const auto after = model->parameters().named_values();
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i].tensor.dim() > 1) {
      EXPECT_CLOSE(after[i].tensor, before[i] * 0.99, 1e-6) << after[i].name;
    } else {
      EXPECT_TRUE(after[i].tensor.equal(before[i])) << after[i].name;
    }
  }
}

// The same bits wherever a buffer is cut into calls: the ground for sharding and for decaying two ranges.
TEST(AdamW, CutsOfABufferChangeNoBit) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    Tensors whole;
    for (const bool one_range : {true, false}) {
      const auto model = small_model(small_config(), type);
      AdamW optimizer(model->parameters(), {.weight_decay = 0, .decay_vectors = one_range});
      Draw draw(type, 8);
      for (int step = 0; step < 3; ++step) {
        for (const auto& g : model->parameters().named_gradients()) g.tensor.copy_(draw.normal(g.tensor.sizes()));
        optimizer.step(0.01, 1.5);
      }
      const auto values = model->parameters().named_values();
      if (one_range) {
        for (const auto& v : values) whole.push_back(v.tensor);
        continue;
      }
      for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(values[i].tensor.equal(whole[i])) << values[i].name;
    }
  }
}

TEST(AdamW, ContinuesFromSavedMomentsAndCounter) {
  const auto run = [](AdamW& optimizer, Model& model, int from, int to) {
    for (int step = from; step < to; ++step) {
      Draw draw(at::kFloat, static_cast<uint64_t>(100 + step));
      for (const auto& g : model.parameters().named_gradients()) g.tensor.copy_(draw.normal(g.tensor.sizes()));
      optimizer.step(0.01, 1.0);
    }
  };
  const auto straight = small_model(small_config(), at::kFloat), first = small_model(small_config(), at::kFloat);
  AdamW a(straight->parameters(), {}), b(first->parameters(), {});
  run(a, *straight, 0, 5);
  run(b, *first, 0, 3);
  const auto resumed = small_model(small_config(), at::kFloat, at::kFloat, 99);
  AdamW c(resumed->parameters(), {});
  const auto copy = [](const std::vector<NamedTensor>& to, const std::vector<NamedTensor>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  };
  copy(resumed->parameters().named_values(), first->parameters().named_values());
  copy(c.named_first_moments(), b.named_first_moments());
  copy(c.named_second_moments(), b.named_second_moments());
  c.set_steps(b.steps());
  run(c, *resumed, 3, 5);
  const auto expected = straight->parameters().named_values(), actual = resumed->parameters().named_values();
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].tensor.equal(expected[i].tensor)) << actual[i].name;
}

TEST(AdamW, RefreshesTheComputeCopy) {
  const auto model = small_model(small_config(), at::kBFloat16, at::kFloat);
  AdamW optimizer(model->parameters(), {});
  model->parameters().named_gradients()[0].tensor.fill_(1);
  optimizer.step(0.5, 1.0);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(model->parameters().leaf("embed.weight").value.equal(value(*model, "embed.weight").to(at::kBFloat16)));
}

// ---- gradient norm --------------------------------------------------------------------------------------------------

TEST(GradientNorm, EqualsTheNormOfAllGradientsTogether) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    ModelConfig c = small_config();
    c.vocab_size = 40000;  // the embedding's buffer is longer than one block of the sum
    ParameterStore store(c, at::kCPU, type, type, true);
    Draw draw(type, 12);
    double squares = 0;
    for (const auto& g : store.named_gradients()) {
      g.tensor.copy_(draw.normal(g.tensor.sizes(), 1e-3));
      squares += g.tensor.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(gradient_norm(store) / std::sqrt(squares), 1, type == at::kDouble ? 1e-12 : 1e-6);
    store.zero_gradients();
    EXPECT_EQ(gradient_norm(store), 0);
    store.named_gradients()[3].tensor.flatten()[0] = std::nan("");
    EXPECT_TRUE(std::isnan(gradient_norm(store)));
  }
}

}  // namespace
}  // namespace mythos
