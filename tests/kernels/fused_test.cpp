// Every fused op against its composite form, against numeric derivatives, and with gradient buffers.
#include "../support/tensors.h"

#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr at::ScalarType types[] = {at::kDouble, at::kFloat};
// Around the 16 lanes of the row kernels; 700 rows of 33 are more than one thread's part.
constexpr int64_t widths[] = {1, 2, 15, 16, 17, 33};
constexpr int64_t row_counts[] = {1, 2, 17, 700};

Weight plain(const at::Tensor& t) { return {t, {}}; }

RotaryTable::Slice positions(int64_t width, int64_t begin, int64_t count) {
  return RotaryTable(width, 10000.0, at::kCPU).slice(begin, count);
}

// ---- against the composite form -------------------------------------------------------------------------------------

const Function fused_norm = [](const Tensors& in) { return Tensors{rms_norm(in[0], plain(in[1]))}; };

TEST(RmsNorm, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t d : widths) {
      if (d == 1) continue;  // below
      for (const int64_t rows : row_counts) {
        const Function composite = [](const Tensors& in) { return Tensors{rms_norm_reference(in[0], in[1])}; };
        const std::string what = fmt::format("{} x {}", rows, d);
        expect_twins(what, fused_norm, composite, {draw.normal({rows, d}), draw.normal({d})});
        expect_twins(what + " strided", fused_norm, composite, {draw.transposed({rows, 3, d}), draw.normal({d})});
      }
    }
  }
}

// One channel: y is the sign of x times the weight, and the gradient of x all but cancels.
TEST(RmsNorm, OfOneChannel) {
  for (const auto type : types) {
    const at::Tensor x = leaf(at::tensor({-3.0, 0.5, 100.0}, at::kDouble).to(type).unsqueeze(1));
    const at::Tensor w = leaf(at::full({1}, 2.0, type));
    const at::Tensor y = rms_norm(x, plain(w));
    EXPECT_CLOSE(y, at::tensor({-2.0, 2.0, 2.0}, at::kDouble).unsqueeze(1), 1e-5);
    const Tensors grads = gradients({y}, {x, w}, {at::ones_like(y)});
    EXPECT_LT(grads[0].abs().max().item<double>(), 2e-5);
    EXPECT_NEAR(grads[1].item<double>(), 1, 1e-5);
  }
}

const Function fused_feed_forward = [](const Tensors& in) {
  return Tensors{feed_forward(in[0], plain(in[1]), plain(in[2]), Part::projections)};
};

TEST(FeedForward, EqualsCompositeForm) {
  const Function composite = [](const Tensors& in) { return Tensors{feed_forward_reference(in[0], in[1], in[2])}; };
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t f : widths) {
      for (const int64_t rows : row_counts) {
        const std::string what = fmt::format("{} x {}", rows, f);
        const Tensors weights{draw.normal({2 * f, 7}, 2), draw.normal({5, f})};
        const at::Tensor square = draw.normal({7, f});
        expect_twins(what, fused_feed_forward, composite, {draw.normal({rows, 7}), weights[0], square});
        expect_twins(what + " strided", fused_feed_forward, composite,
                     {draw.transposed({rows, 2, 7}), weights[0], square});
      }
    }
  }
}

// What ops with SwiGLU inside call: y, and with a factor for each row the three gradients.
TEST(SwiGlu, ScaledRowsEqualCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t f : widths) {
      for (const int64_t rows : row_counts) {
        const at::Tensor joined = leaf(draw.normal({rows, 2 * f}, 3)), scale = leaf(draw.normal({rows}));
        const at::Tensor y = swiglu_reference(joined) * scale.unsqueeze(1);
        const at::Tensor dy = draw.normal({rows, f});
        const Tensors expected = gradients({y}, {joined, scale}, {dy});
        const SwigluBackward b = swiglu_backward(joined.detach(), dy, scale.detach());
        const std::string what = fmt::format("{} x {}", rows, f);
        EXPECT_CLOSE(swiglu_forward(joined.detach()), swiglu_reference(joined), rounding(type)) << what;
        EXPECT_CLOSE(b.act, y, rounding(type)) << what;
        EXPECT_CLOSE(b.djoined, expected[0], rounding(type)) << what;
        EXPECT_CLOSE(b.dscale, expected[1], 10 * rounding(type)) << what;
        EXPECT_FALSE(swiglu_backward(joined.detach(), dy, {}).dscale.defined());
      }
    }
  }
}

TEST(SwiGlu, LargeGatesStayFinite) {
  for (const auto type : types) {
    const at::Tensor gate = at::tensor({-1e4, -120.0, -88.5, -20.0, 0.0, 20.0, 88.5, 120.0, 1e4}, at::kDouble);
    const at::Tensor joined = at::cat({gate, at::full_like(gate, 2.0)}).to(type).unsqueeze(0);
    const at::Tensor y = swiglu_forward(joined);
    EXPECT_CLOSE(y, swiglu_reference(joined), rounding(type));
    EXPECT_TRUE(swiglu_backward(joined, at::ones_like(y), {}).djoined.isfinite().all().item<bool>());
  }
}

TEST(Rotate, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t d : {2, 6, 16, 34}) {
      for (const int64_t t : {1, 15, 33}) {
        for (const int64_t heads : {1, 3, 17}) {
          const auto rows = positions(d, 5, t);
          const Function fused = [&](const Tensors& in) { return Tensors{rotate(in[0], rows)}; };
          const Function composite = [&](const Tensors& in) { return Tensors{rotate_reference(in[0], rows)}; };
          const std::string what = fmt::format("T {} H {} d {}", t, heads, d);
          expect_twins(what, fused, composite, {draw.normal({2, t, heads, d})});
          expect_twins(what + " strided", fused, composite, {draw.transposed({2, t, heads, d})});
        }
      }
    }
  }
}

struct Sizes {
  int64_t n, k, e, d, f;
};

Function routed(const at::Tensor& chosen) {
  return
      [chosen](const Tensors& in) { return Tensors{routed_experts(in[0], plain(in[1]), plain(in[2]), chosen, in[3])}; };
}
Function routed_reference(const at::Tensor& chosen) {
  return [chosen](const Tensors& in) { return Tensors{routed_experts_reference(in[0], in[1], in[2], chosen, in[3])}; };
}
Tensors routed_inputs(Draw& draw, const Sizes& c) {
  return {draw.normal({c.n, c.d}), draw.normal({c.e, 2 * c.f, c.d}), draw.normal({c.e, c.d, c.f}),
          draw.normal({c.n, c.k})};
}
at::Tensor random_choice(Draw& draw, const Sizes& c) { return std::get<1>(draw.normal({c.n, c.e}).topk(c.k)); }

TEST(RoutedExperts, EqualsCompositeForm) {
  // One token; more experts than choices, so that some stay empty; more rows than one thread's part.
  const Sizes cases[] = {{1, 1, 1, 1, 1},     {2, 2, 3, 15, 16},   {17, 3, 5, 16, 33}, {33, 2, 40, 17, 15},
                         {300, 2, 4, 33, 31}, {500, 2, 5, 70, 105}};  // products large enough for our own
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& c : cases) {
      const std::string what = fmt::format("N {} K {} E {} D {} F {}", c.n, c.k, c.e, c.d, c.f);
      const at::Tensor chosen = random_choice(draw, c);
      Tensors inputs = routed_inputs(draw, c);
      expect_twins(what, routed(chosen), routed_reference(chosen), inputs);
      inputs[0] = draw.transposed({c.n, c.d});
      inputs[3] = draw.transposed({c.n, c.k});
      const at::Tensor strided = chosen.t().contiguous().t();
      expect_twins(what + " strided", routed(strided), routed_reference(strided), inputs);
    }
  }
}

TEST(RoutedExperts, OneExpertMayTakeAllAndOthersNone) {
  const Sizes c{40, 1, 6, 17, 16};
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t winner : {0, 3, 5}) {
      const at::Tensor chosen = at::full({c.n, 1}, winner, at::kLong);
      const Tensors inputs = routed_inputs(draw, c);
      expect_twins(fmt::format("all to {}", winner), routed(chosen), routed_reference(chosen), inputs);

      Tensors leaves;
      for (const auto& t : inputs) leaves.push_back(leaf(t));
      const Tensors out = routed(chosen)(leaves);
      const Tensors grads = gradients(out, leaves, {at::ones_like(out[0])});
      for (int64_t e = 0; e < c.e; ++e) {
        EXPECT_EQ(grads[1][e].abs().max().item<double>() > 0, e == winner) << e;
        EXPECT_EQ(grads[2][e].abs().max().item<double>() > 0, e == winner) << e;
      }
    }
  }
}

// ---- gradients are derivatives --------------------------------------------------------------------------------------

TEST(Derivatives, NormAndFeedForwardAndRotate) {
  Draw draw(at::kDouble);
  expect_derivatives("rms_norm", fused_norm, {draw.normal({3, 5}), draw.normal({5})});
  expect_derivatives("feed_forward", fused_feed_forward,
                     {draw.normal({3, 5}), draw.normal({8, 5}), draw.normal({5, 4})});
  const auto rows = positions(6, 3, 4);
  expect_derivatives("rotate", [&](const Tensors& in) { return Tensors{rotate(in[0], rows)}; },
                     {draw.normal({2, 4, 2, 6})});
}

TEST(Derivatives, WeightedOps) {
  Draw draw(at::kDouble);
  const Sizes c{6, 2, 4, 5, 3};
  expect_derivatives("routed_experts", routed(random_choice(draw, c)), routed_inputs(draw, c));
  expect_derivatives("linear", [](const Tensors& in) { return Tensors{linear(in[0], plain(in[1]))}; },
                     {draw.normal({2, 3, 5}), draw.normal({4, 5})});
  const at::Tensor ids = draw.below(7, {2, 5});
  expect_derivatives("embedding", [&](const Tensors& in) { return Tensors{embedding(ids, plain(in[0]))}; },
                     {draw.normal({7, 4})});
  const at::Tensor targets = draw.below(9, {6}).index_fill_(0, at::tensor({2}, at::kLong), ignored_target);
  for (const int64_t chunk : {1, 4, 6}) {
    expect_derivatives(
        "linear_cross_entropy",
        [&](const Tensors& in) { return Tensors{linear_cross_entropy(in[0], plain(in[1]), targets, 5, chunk)}; },
        {draw.normal({6, 5}), draw.normal({9, 5})});
  }
}

// ---- gradient buffers -----------------------------------------------------------------------------------------------

using WeightedOp = std::function<at::Tensor(const at::Tensor& x, const std::vector<Weight>&)>;

// With Weight.grad defined: the same output and gradient of x, the buffer holds what it held plus the gradient, and
// autograd gets nothing for the weight.
void expect_sinks(const std::string& what, const WeightedOp& op, const at::Tensor& x, const Tensors& values) {
  const double tolerance = rounding(x.scalar_type());
  Draw draw(x.scalar_type(), 79);
  std::vector<Weight> without, with;
  Tensors inputs{leaf(x)};
  Tensors before;
  for (const auto& v : values) {
    without.push_back({leaf(v), {}});
    inputs.push_back(without.back().value);
    before.push_back(draw.normal(v.sizes()));
    with.push_back({leaf(v), before.back().clone()});
  }
  const at::Tensor expected = op(inputs[0], without);
  const at::Tensor cotangent = expected.dim() == 0 ? at::ones_like(expected) : draw.normal(expected.sizes());
  const Tensors grads = gradients({expected}, inputs, {cotangent});

  const at::Tensor again = leaf(x);
  const at::Tensor actual = op(again, with);
  EXPECT_CLOSE(actual, expected, tolerance) << what;
  torch::autograd::backward({actual}, {cotangent});
  EXPECT_CLOSE(again.grad(), grads[0], tolerance) << what << ": x";
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_CLOSE(with[i].grad - before[i], grads[i + 1], 10 * tolerance) << what << ": weight " << i;
    EXPECT_FALSE(with[i].value.grad().defined()) << what << ": weight " << i;
  }
}

TEST(GradientBuffers, ReceiveWhatAutogradWould) {
  for (const auto type : types) {
    Draw draw(type);
    const auto norm = [](const at::Tensor& x, const auto& w) { return rms_norm(x, w[0]); };
    expect_sinks("rms_norm", norm, draw.normal({700, 33}), {draw.normal({33})});
    expect_sinks("rms_norm strided", norm, draw.transposed({5, 3, 16}), {draw.normal({16})});
    const auto product = [](const at::Tensor& x, const auto& w) { return linear(x, w[0]); };
    expect_sinks("linear", product, draw.normal({2, 17, 15}), {draw.normal({33, 15})});
    expect_sinks("linear strided", product, draw.transposed({2, 17, 15}), {draw.normal({33, 15})});

    const auto network = [](const at::Tensor& x, const auto& w) { return feed_forward(x, w[0], w[1], Part::experts); };
    expect_sinks("feed_forward", network, draw.normal({2, 17, 15}), {draw.normal({66, 15}), draw.normal({15, 33})});

    const at::Tensor ids =
        at::tensor({3, 3, 0, 3, 5, 0}, at::kLong).view({2, 3});  // rows used more than once, and never
    const auto table = draw.normal({7, 5});
    const Weight sink{leaf(table), at::ones_like(table)}, none{leaf(table), {}};
    const at::Tensor cotangent = draw.normal({2, 3, 5});
    torch::autograd::backward({embedding(ids, sink)}, {cotangent});
    const at::Tensor expected = gradients({embedding(ids, none)}, {none.value}, {cotangent})[0];
    EXPECT_CLOSE(sink.grad - 1, expected, rounding(type));
    EXPECT_CLOSE(expected, at::zeros_like(table).index_add_(0, ids.flatten(), cotangent.view({6, 5})), rounding(type));

    const Sizes c{33, 2, 5, 17, 16};
    const at::Tensor chosen = random_choice(draw, c);
    const Tensors in = routed_inputs(draw, c);
    expect_sinks("routed_experts",
                 [&](const at::Tensor& x, const auto& w) { return routed_experts(x, w[0], w[1], chosen, in[3]); },
                 in[0], {in[1], in[2]});

    const at::Tensor targets = draw.below(50, {19}).index_fill_(0, at::tensor({0, 7}, at::kLong), ignored_target);
    for (const int64_t chunk : {1, 7, 100}) {
      expect_sinks(
          "linear_cross_entropy",
          [&](const at::Tensor& x, const auto& w) { return linear_cross_entropy(x, w[0], targets, 17, chunk); },
          draw.normal({19, 16}), {draw.normal({50, 16})});
    }
  }
}

TEST(GradientBuffers, AreNotTouchedWithoutGradMode) {
  Draw draw(at::kFloat);
  const at::NoGradGuard no_grad;
  const Weight square{leaf(draw.normal({8, 8})), at::zeros({8, 8})};
  linear(draw.normal({3, 8}), square);
  embedding(draw.below(8, {3}), square);
  linear_cross_entropy(draw.normal({3, 8}), square, draw.below(8, {3}), 3);
  EXPECT_EQ(square.grad.abs().max().item<double>(), 0);
}

TEST(GradientBuffers, ScaledLossWithAWeightBufferIsRefused) {
  // Its gradient was added in the forward pass already, so another factor cannot reach it.
  Draw draw(at::kFloat);
  const Weight w{leaf(draw.normal({9, 4})), at::zeros({9, 4})};
  const at::Tensor loss = linear_cross_entropy(leaf(draw.normal({3, 4})), w, draw.below(9, {3}), 3);
  EXPECT_THROW(torch::autograd::backward({loss * 2}, {}), c10::Error);
}

// ---- bf16 -----------------------------------------------------------------------------------------------------------

TEST(Bfloat16, TakesTheCompositePathNearFloat32) {
  Draw draw(at::kBFloat16);
  const auto expect_near = [](const std::string& what, const Function& op, const Tensors& inputs) {
    Tensors narrow, wide;
    for (const auto& t : inputs) {
      narrow.push_back(leaf(t));
      wide.push_back(leaf(t.to(at::kFloat)));
    }
    const Tensors out = op(narrow), expected = op(wide);
    Draw cotangent(at::kBFloat16, 80);
    const at::Tensor c = cotangent.normal(out[0].sizes());
    const Tensors grads = gradients({out[0]}, narrow, {c.to(out[0].scalar_type())});
    const Tensors expected_grads = gradients({expected[0]}, wide, {c.to(at::kFloat)});
    EXPECT_CLOSE(out[0], expected[0], 0.02) << what;
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(grads[i].scalar_type(), at::kBFloat16);
      EXPECT_CLOSE(grads[i], expected_grads[i], 0.03) << what << ": gradient of input " << i;
    }
  };
  expect_near("rms_norm", fused_norm, {draw.normal({17, 33}), draw.normal({33})});
  expect_near("feed_forward", fused_feed_forward,
              {draw.normal({17, 16}), draw.normal({66, 16}, 0.25), draw.normal({16, 33}, 0.2)});
  const auto rows = positions(16, 300, 9);
  expect_near("rotate", [&](const Tensors& in) { return Tensors{rotate(in[0], rows)}; }, {draw.normal({2, 9, 3, 16})});
  const MlaHeads sizes{2, 8, 16, 12};
  expect_near("mla_attention", [&](const Tensors& t) { return Tensors{mla_attention(t[0], t[1], t[2], rows, sizes)}; },
              {draw.normal({2, 9, 48}), draw.normal({2, 9, 40}), draw.normal({2, 9, 16})});
  expect_near("causal_attention", [](const Tensors& in) { return Tensors{causal_attention(in[0], in[1], in[2])}; },
              {draw.normal({2, 9, 4, 8}), draw.normal({2, 9, 2, 8}), draw.normal({2, 9, 2, 8})});
  const Sizes c{33, 2, 5, 16, 16};
  Tensors in = routed_inputs(draw, c);
  const at::Tensor weights = in[3].to(at::kFloat).softmax(-1);  // fp32, as route() gives them
  const at::Tensor chosen = random_choice(draw, c);
  expect_near(
      "routed_experts",
      [&](const Tensors& t) { return Tensors{routed_experts(t[0], plain(t[1]), plain(t[2]), chosen, weights)}; },
      {in[0], in[1], in[2]});
  const at::Tensor targets = draw.below(50, {19}).index_fill_(0, at::tensor({0, 7}, at::kLong), ignored_target);
  const at::Tensor hidden = draw.normal({19, 16}), head = draw.normal({50, 16});
  const at::Tensor loss = linear_cross_entropy(hidden, plain(head), targets, 17, 4);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_CLOSE(loss, linear_cross_entropy(hidden.to(at::kFloat), plain(head.to(at::kFloat)), targets, 17, 4), 0.01);
}

}  // namespace
}  // namespace mythos
