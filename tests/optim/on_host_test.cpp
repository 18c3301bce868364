// The device's optimizer, its source run on the host, against the CPU's own form.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "kernels/cuda/place.h"
#include "optim/adamw.h"

#include <cmath>
#include <limits>
#include <optional>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

void draw_gradients(const Model& model, at::ScalarType type, uint64_t seed, double scale) {
  Draw draw(type, seed);
  for (const auto& g : model.parameters().named_gradients()) g.tensor.copy_(draw.normal(g.tensor.sizes(), scale));
}

struct Case {
  at::ScalarType compute, master;
  double clip;
  bool decay_vectors, lags;
};

void check_alike(const Case& c) {
  const auto own = small_model(small_config(), c.compute, c.master),
             device = small_model(small_config(), c.compute, c.master);
  AdamW a(own->parameters(), {.decay_vectors = c.decay_vectors}),
      b(device->parameters(), {.decay_vectors = c.decay_vectors});
  if (c.lags) {
    std::vector<int64_t> lags(own->parameters().layout().parameters.size());
    for (size_t i = 0; i < lags.size(); ++i) lags[i] = static_cast<int64_t>(i % 3);
    a.set_lags(lags);
    b.set_lags(lags);
    a.set_steps(5);
    b.set_steps(5);
  }
  const at::Tensor loss = at::scalar_tensor(1.25, at::kDouble);
  const double tolerance = c.master == at::kDouble ? 1e-12 : 2e-6;
  for (uint64_t step = 0; step < 4; ++step) {
    draw_gradients(*own, c.master, 50 + step, 0.1);
    draw_gradients(*device, c.master, 50 + step, 0.1);
    const auto expected = a.clipped_step(0.01, c.clip, loss);
    std::optional<cuda::OnHost> host(std::in_place);
    const auto actual = b.clipped_step(0.01, c.clip, loss);
    EXPECT_TRUE(expected.updated && actual.updated);
    EXPECT_EQ(actual.loss, 1.25);
    EXPECT_NEAR(actual.norm / expected.norm, 1, tolerance);
    EXPECT_EQ(b.steps(), a.steps());
  }
  for (size_t u = 0; u < own->parameters().units(); ++u) {
    EXPECT_CLOSE(device->parameters().values(u), own->parameters().values(u), tolerance) << u;
    EXPECT_CLOSE(b.first_moments()[u], a.first_moments()[u], tolerance) << u;
    EXPECT_CLOSE(b.second_moments()[u], a.second_moments()[u], tolerance) << u;
    EXPECT_TRUE(device->parameters().whole_values(u).equal(device->parameters().values(u).to(c.compute))) << u;
  }
}

TEST(AdamWOnHost, EqualsTheCpusFormOverSeveralSteps) {
  for (const auto& [compute, master] : {std::pair{at::kFloat, at::kFloat},
                                        {at::kDouble, at::kDouble},
                                        {at::kBFloat16, at::kFloat},
                                        {at::kFloat, at::kDouble}}) {
    for (const double clip : {0.0, 0.5, 1e9}) {
      check_alike({compute, master, clip, true, false});
      check_alike({compute, master, clip, false, true});
    }
  }
}

TEST(AdamWOnHost, TouchesNothingWhereLossOrGradientIsNotFinite) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto model = small_model(small_config(), at::kBFloat16, at::kFloat);
  ParameterStore& store = model->parameters();
  AdamW optimizer(store, {});
  const cuda::OnHost host;
  draw_gradients(*model, at::kFloat, 3, 1);
  ASSERT_TRUE(optimizer.clipped_step(0.01, 1, at::scalar_tensor(2.0, at::kDouble)).updated);
  const auto all = [&] {
    Tensors state;
    for (size_t u = 0; u < store.units(); ++u) {
      for (const at::Tensor& t :
           {store.values(u), store.whole_values(u), optimizer.first_moments()[u], optimizer.second_moments()[u]}) {
        state.push_back(t.detach().clone());
      }
    }
    return state;
  };
  const Tensors before = all();
  const auto expect_untouched = [&](double loss) {
    EXPECT_FALSE(optimizer.clipped_step(0.01, 1, at::scalar_tensor(loss, at::kDouble)).updated);
    EXPECT_EQ(optimizer.steps(), 1);
    const Tensors after = all();
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(after[i].equal(before[i])) << i;
  };
  expect_untouched(std::nan(""));
  expect_untouched(-inf);
  for (const double bad : {std::nan(""), inf}) {
    draw_gradients(*model, at::kFloat, 4, 1);
    const at::Tensor last = store.gradients(store.units() - 1);
    last[last.numel() - 1].fill_(bad);
    expect_untouched(2.0);
  }
}

TEST(AdamWOnHost, TheNormIsThatOfAllGradients) {
  ModelConfig c = small_config();
  c.vocab_size = 40000;  // more than the teams' first steps
  for (const auto type : {at::kDouble, at::kFloat}) {
    ParameterStore store(c, at::kCPU, type, type, true);
    Draw draw(type, 12);
    double squares = 0;
    for (const auto& g : store.named_gradients()) {
      g.tensor.copy_(draw.normal(g.tensor.sizes(), 1e-3));
      squares += g.tensor.to(at::kDouble).square().sum().item<double>();
    }
    const cuda::OnHost host;
    EXPECT_NEAR(gradient_norm(store) / std::sqrt(squares), 1, 1e-12);
  }
}

}  // namespace
}  // namespace mythos
