// The looped block's elementwise ops against their composite forms, numeric derivatives, gradient buffers and bounds.
#include "../support/tensors.h"

#include "kernels/loop.h"

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr at::ScalarType types[] = {at::kDouble, at::kFloat};
// Around the 16 lanes of the row kernels; 700 rows of 33 are more than one thread's part.
constexpr int64_t widths[] = {2, 15, 16, 17, 33};
constexpr int64_t row_counts[] = {1, 2, 17, 700};

Weight plain(const at::Tensor& t) { return {t, {}}; }

// ---- the ops as functions of tensors --------------------------------------------------------------------------------

// in: h, e, weight
Function signal_norm(const at::Tensor& signal) {
  return [signal](const Tensors& in) { return Tensors{loop_norm(in[0], signal, in[1], plain(in[2]))}; };
}
Function signal_norm_reference(const at::Tensor& signal) {
  return [signal](const Tensors& in) { return Tensors{loop_norm_reference(in[0], signal, in[1], in[2])}; };
}

// in: h, e, u, lora, log_A, log_dt, B
const Function inject = [](const Tensors& in) {
  return Tensors{injection(in[0], in[1], in[2], in[3], plain(in[4]), plain(in[5]), plain(in[6]))};
};
const Function inject_reference = [](const Tensors& in) {
  return Tensors{injection_reference(in[0], in[1], in[2], in[3], in[4], in[5], in[6])};
};
Tensors injection_inputs(Draw& draw, int64_t rows, int64_t d) {
  return {draw.normal({rows, d}), draw.normal({rows, d}), draw.normal({rows, d}), draw.normal({rows, d}),
          draw.normal({d}),       draw.normal({1}),       draw.normal({d})};
}

HaltingState fresh(const at::Tensor& h) {
  return {at::zeros({h.size(0), h.size(1)}, h.options()),
          at::zeros({h.size(0), h.size(1)}, h.options().dtype(at::kBool))};
}

// in: halt, bias, out, then h of every loop
Function act(double threshold, bool reference, std::vector<ActStep>* steps = nullptr) {
  return [=](const Tensors& in) {
    HaltingState state = fresh(in[3]);
    at::Tensor out = in[2];
    for (size_t i = 3; i < in.size(); ++i) {
      const ActStep step = reference ? act_step_reference(in[i], out, state, in[0], in[1], threshold)
                                     : act_step(in[i], out, state, plain(in[0]), plain(in[1]), threshold);
      out = step.out;
      if (steps != nullptr) steps->push_back(step);
    }
    // The last cumulative sum too: its gradient is what a later loop would send back.
    return Tensors{out, state.cumulative};
  };
}
Tensors act_inputs(Draw& draw, int64_t b, int64_t t, int64_t d, int64_t loops) {
  Tensors in{draw.normal({1, d}, 1.0 / std::sqrt(static_cast<double>(d))), draw.normal({1}) - 1,
             draw.normal({b, t, d})};
  for (int64_t i = 0; i < loops; ++i) in.push_back(draw.normal({b, t, d}));
  return in;
}

// ---- against the composite form -------------------------------------------------------------------------------------

TEST(LoopNorm, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t d : widths) {
      for (const int64_t rows : row_counts) {
        const std::string what = fmt::format("{} x {}", rows, d);
        const at::Tensor signal = draw.normal({d});
        expect_twins(what, signal_norm(signal), signal_norm_reference(signal),
                     {draw.normal({rows, d}), draw.normal({rows, d}), draw.normal({d})});
        expect_twins(what + " strided", signal_norm(signal), signal_norm_reference(signal),
                     {draw.transposed({rows, 3, d}), draw.normal({rows, 3, d}), draw.normal({d})});
      }
    }
  }
}

// In the first loop h and e are one tensor: its gradient is counted for both.
TEST(LoopNorm, OfOneTensorTwice) {
  for (const auto type : types) {
    Draw draw(type);
    const at::Tensor signal = draw.normal({17});
    const auto twice = [](const Function& op) { return [op](const Tensors& in) { return op({in[0], in[0], in[1]}); }; };
    expect_twins("loop_norm", twice(signal_norm(signal)), twice(signal_norm_reference(signal)),
                 {draw.normal({5, 17}), draw.normal({17})});
  }
}

TEST(Injection, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t d : widths) {
      for (const int64_t rows : row_counts) {
        const std::string what = fmt::format("{} x {}", rows, d);
        Tensors in = injection_inputs(draw, rows, d);
        expect_twins(what, inject, inject_reference, in);
        for (size_t i = 0; i < 4; ++i) in[i] = draw.transposed({rows, 3, d});
        expect_twins(what + " strided", inject, inject_reference, in);
      }
    }
  }
}

// Outside -16 .. 20 the clamp has no gradient, on its bounds it has.
TEST(Injection, GradientEndsAtTheClampsBounds) {
  for (const auto type : types) {
    Draw draw(type);
    Tensors in = injection_inputs(draw, 5, 7);
    in[4] = at::tensor({-17.0, -16.01, -15.99, 0.0, 2.0, 19.99, 20.01}, at::kDouble).to(type);
    in[5] = at::zeros({1}, type);
    expect_twins("clamp", inject, inject_reference, in);
    Tensors leaves;
    for (const auto& t : in) leaves.push_back(leaf(t));
    const Tensors out = inject(leaves);
    const at::Tensor grad = gradients(out, leaves, {at::ones_like(out[0])})[4];
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << grad;
    for (const int i : {0, 1}) EXPECT_EQ(grad[i].item<double>(), 0) << i;
    for (const int i : {2, 3, 4}) EXPECT_NE(grad[i].item<double>(), 0) << i;
    EXPECT_EQ(grad[6].item<double>(), 0);
  }
}

TEST(Injection, PassesItsGradientOnWithoutACopy) {
  Draw draw(at::kFloat);
  Tensors leaves;
  for (const auto& t : injection_inputs(draw, 3, 16)) leaves.push_back(leaf(t));
  const at::Tensor cotangent = draw.normal({3, 16});
  const Tensors grads = gradients(inject(leaves), leaves, {cotangent});
  EXPECT_EQ(grads[2].const_data_ptr(), cotangent.const_data_ptr());
  EXPECT_EQ(grads[3].const_data_ptr(), cotangent.const_data_ptr());
}

TEST(ActStep, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t d : widths) {
      for (const int64_t t : {1, 9, 350}) {
        for (const double threshold : {0.99, 0.5}) {
          const std::string what = fmt::format("T {} D {} threshold {}", t, d, threshold);
          const Tensors in = act_inputs(draw, 2, t, d, 5);
          std::vector<ActStep> fused, composite;
          expect_twins(what, act(threshold, false, &fused), act(threshold, true, &composite), in);
          for (size_t i = 0; i < fused.size(); ++i) {
            EXPECT_CLOSE(fused[i].p, composite[i].p, rounding(type)) << what;
            EXPECT_CLOSE(fused[i].weight, composite[i].weight, rounding(type)) << what;
            EXPECT_FALSE(fused[i].p.requires_grad());
          }
        }
      }
    }
  }
}

TEST(ActStep, OfStridedTensors) {
  for (const auto type : types) {
    Draw draw(type);
    Tensors in = act_inputs(draw, 2, 9, 17, 3);
    for (size_t i = 2; i < in.size(); ++i) in[i] = draw.transposed({2, 9, 17});
    expect_twins("strided", act(0.99, false), act(0.99, true), in, 5);  // the bias has one gradient, a sum
  }
}

// p is 0.5 exactly; the second loop reaches the threshold of 1 exactly and takes the remainder, the third weighs
// nothing.
TEST(ActStep, ReachingTheThresholdExactlyHalts) {
  for (const auto type : types) {
    Draw draw(type);
    Tensors in = act_inputs(draw, 1, 4, 6, 3);
    in[0].zero_();
    in[1].zero_();
    std::vector<ActStep> steps;
    expect_twins("equality", act(1.0, false), act(1.0, true), in);
    const Tensors out = act(1.0, false, &steps)(in);
    EXPECT_TRUE(out[1].eq(1.0).all().item<bool>());
    EXPECT_TRUE(steps[0].weight.eq(0.5).all().item<bool>());
    EXPECT_TRUE(steps[1].weight.eq(0.5).all().item<bool>());
    EXPECT_TRUE(steps[2].weight.eq(0.0).all().item<bool>());
    EXPECT_CLOSE(out[0], in[2] + 0.5 * in[3] + 0.5 * in[4], rounding(type));
  }
}

// More was collected than 1 already (a threshold above 1): the remainder is 0, and no gradient comes from it.
TEST(ActStep, RemainderIsNeverNegative) {
  for (const auto type : types) {
    Draw draw(type);
    Tensors in = act_inputs(draw, 1, 4, 6, 4);
    in[1].fill_(0.5);  // p about 0.6: 1.2 after two loops, 1.8 with the third
    in[0].mul_(0.01);
    std::vector<ActStep> steps;
    (void)act(1.5, false, &steps)(in);
    EXPECT_TRUE(steps[1].weight.gt(0.5).all().item<bool>());
    EXPECT_TRUE(steps[2].weight.eq(0.0).all().item<bool>());
    expect_twins("above one", act(1.5, false), act(1.5, true), in);
  }
}

// ---- gradients are derivatives --------------------------------------------------------------------------------------

TEST(LoopDerivatives, OfEveryOp) {
  Draw draw(at::kDouble);
  expect_derivatives("loop_norm", signal_norm(draw.normal({5})),
                     {draw.normal({3, 5}), draw.normal({3, 5}), draw.normal({5})});
  expect_derivatives("injection", inject, injection_inputs(draw, 3, 5));
  for (const double threshold : {0.99, 0.6}) {
    expect_derivatives("act_step", act(threshold, false), act_inputs(draw, 2, 3, 5, 4));
  }
}

// ---- gradient buffers -----------------------------------------------------------------------------------------------

// With Weight.grad defined the buffers hold what they held plus the gradient, and autograd gets nothing.
void expect_buffers(const std::string& what, const std::function<at::Tensor(const std::vector<Weight>&)>& op,
                    const Tensors& values) {
  const double tolerance = 10 * rounding(values[0].scalar_type());
  std::vector<Weight> without, with;
  Tensors leaves;
  for (const auto& v : values) {
    without.push_back({leaf(v), {}});
    leaves.push_back(without.back().value);
    with.push_back({leaf(v), at::ones_like(v)});
  }
  const at::Tensor expected = op(without);
  const at::Tensor cotangent = Draw(expected.scalar_type(), 80).normal(expected.sizes());
  const Tensors grads = gradients({expected}, leaves, {cotangent});
  const at::Tensor actual = op(with);
  EXPECT_TRUE(actual.equal(expected)) << what;
  torch::autograd::backward({actual}, {cotangent});
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_GT(grads[i].abs().max().item<double>(), 0) << what << ": weight " << i;
    EXPECT_CLOSE(with[i].grad - 1, grads[i], tolerance) << what << ": weight " << i;
    EXPECT_FALSE(with[i].value.grad().defined()) << what << ": weight " << i;
  }
}

TEST(LoopGradientBuffers, ReceiveWhatAutogradWould) {
  for (const auto type : types) {
    Draw draw(type);
    for (const int64_t t : {3, 700}) {
      const at::Tensor h = draw.normal({1, t, 33}), e = draw.normal({1, t, 33}), signal = draw.normal({33});
      expect_buffers("loop_norm", [&](const auto& w) { return loop_norm(h, signal, e, w[0]); }, {draw.normal({33})});
      expect_buffers("injection", [&](const auto& w) { return injection(h, e, e, h, w[0], w[1], w[2]); },
                     {draw.normal({33}), draw.normal({1}), draw.normal({33})});
      const auto twice = [&](const auto& w) {
        HaltingState state = fresh(h);
        const at::Tensor out = act_step(h, e, state, w[0], w[1], 0.99).out;
        return act_step(e, out, state, w[0], w[1], 0.99).out;
      };
      expect_buffers("act_step", twice, {draw.normal({1, 33}, 0.1), draw.normal({1})});
    }
  }
}

// ---- other dtypes and the table of signals --------------------------------------------------------------------------

TEST(LoopOps, Bfloat16TakesTheCompositePath) {
  Draw draw(at::kBFloat16);
  const at::Tensor h = draw.normal({1, 9, 16}), e = draw.normal({1, 9, 16}), w = draw.normal({16});
  const at::Tensor signal = loop_signal(2, 16, h.options());
  EXPECT_TRUE(loop_norm(h, signal, e, plain(w)).equal(loop_norm_reference(h, signal, e, w)));
  const at::Tensor log_dt = draw.normal({1});
  const at::Tensor y = injection(h, e, h, e, plain(w), plain(log_dt), plain(w));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(y.equal(injection_reference(h, e, h, e, w, log_dt, w)));
  const at::Tensor out = at::zeros({1, 9, 16});
  HaltingState state = fresh(out);
  const ActStep step = act_step(h, out, state, plain(draw.normal({1, 16})), plain(log_dt), 0.99);
  EXPECT_EQ(step.out.scalar_type(), at::kFloat);
  EXPECT_EQ(state.cumulative.scalar_type(), at::kFloat);
}

TEST(LoopSignals, GrowsWithTheLoopsAskedFor) {
  for (const auto type : types) {
    LoopSignals table(64, 3, at::TensorOptions(type));
    for (const int64_t t : {2, 9, 0, 5}) {
      EXPECT_TRUE(table.at(t).equal(loop_signal(t, 64, at::TensorOptions(type)))) << t;
    }
    EXPECT_EQ(table.at(9).const_data_ptr(), table.at(9).const_data_ptr());
  }
}

}  // namespace
}  // namespace mythos
