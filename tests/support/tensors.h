// Seeded random tensors, comparing tensors, and derivatives by central differences.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace mythos::test {

using Tensors = std::vector<at::Tensor>;

/// Random tensors of one type; every draw differs, the same for a seed.
class Draw {
 public:
  explicit Draw(at::ScalarType type, uint64_t seed = 1)
      : type_(type), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

  [[nodiscard]] at::ScalarType type() const { return type_; }
  at::Tensor normal(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, generator_, at::kDouble) * scale).to(type_);
  }
  /// Normal values in memory of the transposed shape: not contiguous where both sizes exceed 1.
  at::Tensor transposed(at::IntArrayRef shape, double scale = 1) {
    auto turned = shape.vec();
    std::swap(turned.front(), turned.back());
    return normal(turned, scale).transpose(0, -1);
  }
  at::Tensor below(int64_t bound, at::IntArrayRef shape) { return at::randint(bound, shape, generator_, at::kLong); }

 private:
  at::ScalarType type_;
  at::Generator generator_;
};

/// A detached copy with the same strides that wants a gradient.
inline at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().set_requires_grad(true); }

/// Largest difference over the expected tensor's largest magnitude. NaN where anything is not a number, infinite where
/// shapes differ.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  if (expected.numel() == 0) return 0;
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const double scale = e.abs().max().item<double>();
  const double difference = (a - e).abs().max().item<double>();
  return scale > 0 ? difference / scale : difference;
}

/// fp32 rounding of sums against fp32's, fp64 against fp64's.
inline double rounding(at::ScalarType type) { return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2; }

#define EXPECT_CLOSE(actual, expected, tolerance) EXPECT_LE(::mythos::test::relative_error(actual, expected), tolerance)

/// Gradients of sum_i(outputs[i] . cotangents[i]) by autograd, zero where an input does not matter.
inline Tensors gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& cotangents) {
  auto grads = torch::autograd::grad(outputs, inputs, cotangents, false, false, /*allow_unused=*/true);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) grads[i] = at::zeros_like(inputs[i]);
  }
  return grads;
}

using Function = std::function<Tensors(const Tensors&)>;

/// Two forms of one op: the same outputs and the same gradients of all inputs of a floating type. `slack`: by how much
/// the gradients of sums that nearly cancel may exceed rounding.
inline void expect_twins(const std::string& what, const Function& fused, const Function& composite,
                         const Tensors& inputs, double slack = 1) {
  const double tolerance = rounding(inputs.at(0).scalar_type());
  Tensors results[2], grads[2];
  Tensors cotangents;
  for (const int which : {0, 1}) {
    Tensors leaves;
    for (const auto& t : inputs) leaves.push_back(leaf(t));
    results[which] = (which == 0 ? fused : composite)(leaves);
    if (cotangents.empty()) {
      Draw draw(results[0][0].scalar_type(), 77);
      for (const auto& r : results[0]) cotangents.push_back(draw.normal(r.sizes()));
    }
    ASSERT_EQ(results[which].size(), cotangents.size());
    grads[which] = gradients(results[which], leaves, cotangents);
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_EQ(results[0][i].scalar_type(), results[1][i].scalar_type()) << what;
    EXPECT_CLOSE(results[0][i], results[1][i], tolerance) << what << ": output " << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_CLOSE(grads[0][i], grads[1][i], slack * tolerance) << what << ": gradient of input " << i;
  }
}

/// Autograd's gradients are the derivatives: central differences in fp64, at up to `places` places of each input.
inline void expect_derivatives(const std::string& what, const Function& function, const Tensors& inputs,
                               int64_t places = 24) {
  Tensors leaves;
  for (const auto& t : inputs) leaves.push_back(leaf(t.contiguous()));
  const Tensors outputs = function(leaves);
  Draw draw(at::kDouble, 78);
  Tensors cotangents;
  for (const auto& o : outputs) cotangents.push_back(draw.normal(o.sizes()));
  const Tensors grads = gradients(outputs, leaves, cotangents);

  const at::NoGradGuard no_grad;
  const auto value = [&] {
    double sum = 0;
    const Tensors results = function(leaves);
    for (size_t i = 0; i < results.size(); ++i) sum += (results[i] * cotangents[i]).sum().item<double>();
    return sum;
  };
  constexpr double step = 1e-5;
  for (size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_EQ(leaves[i].scalar_type(), at::kDouble);
    const double scale = std::max(grads[i].abs().max().item<double>(), 1e-3);
    const int64_t n = leaves[i].numel();
    for (int64_t p = 0; p < std::min(n, places); ++p) {
      const int64_t place = n <= places ? p : draw.below(n, {1}).item<int64_t>();
      double* x = leaves[i].mutable_data_ptr<double>() + place;
      const double before = *x;
      *x = before + step;
      const double above = value();
      *x = before - step;
      const double below = value();
      *x = before;
      EXPECT_NEAR((above - below) / (2 * step), grads[i].flatten()[place].item<double>(), 1e-6 * scale)
          << what << ": input " << i << " at " << place;
    }
  }
}

}  // namespace mythos::test
