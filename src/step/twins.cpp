#include "step/twins.h"

#include "step/twin_list.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <exception>
#include <limits>

namespace mythos {

TwinDraw::TwinDraw(at::Device device, at::ScalarType type, uint64_t seed)
    : device_(device), type_(type), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

at::Tensor TwinDraw::normal(at::IntArrayRef shape, double scale) {
  return (at::randn(shape, generator_, at::kDouble) * scale).to(type_).to(device_);
}
at::Tensor TwinDraw::normal_wide(at::IntArrayRef shape, double scale) {
  return (at::randn(shape, generator_, at::kDouble) * scale).to(wide()).to(device_);
}
at::Tensor TwinDraw::below(int64_t bound, at::IntArrayRef shape) {
  return at::randint(bound, shape, generator_, at::kLong).to(device_);
}

namespace {

double rounding(at::ScalarType type) { return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2; }

// Largest difference over the expected tensor's largest magnitude; infinite where anything is not finite or shapes or
// types differ.
double difference(const at::Tensor& actual, const at::Tensor& expected) {
  constexpr double never = std::numeric_limits<double>::infinity();
  if (!actual.defined() || !expected.defined() || actual.sizes() != expected.sizes() ||
      actual.scalar_type() != expected.scalar_type()) {
    return never;
  }
  if (expected.numel() == 0) return 0;
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const double worst = (a - e).abs().max().item<double>();
  const double scale = e.abs().max().item<double>();
  if (!(worst <= std::numeric_limits<double>::max())) return never;
  return scale > 0 ? worst / scale : worst;
}

struct Outcome {
  std::vector<at::Tensor> outputs, gradients;
};

Outcome run(const TwinForm& form, const std::vector<at::Tensor>& inputs, uint64_t seed) {
  std::vector<at::Tensor> leaves;
  for (const auto& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad(true));
  Outcome out;
  out.outputs = form(leaves);
  std::vector<at::Tensor> differentiable, cotangents;
  for (const auto& o : out.outputs) {
    if (!o.requires_grad()) continue;
    TwinDraw draw(o.device(), o.scalar_type(), seed + differentiable.size());
    differentiable.push_back(o);
    cotangents.push_back(draw.normal(o.sizes()));
  }
  out.gradients.resize(leaves.size());
  if (!differentiable.empty()) {  // a form may deliver gradients itself, as outputs
    out.gradients = torch::autograd::grad(differentiable, leaves, cotangents, false, false, /*allow_unused=*/true);
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!out.gradients[i].defined()) out.gradients[i] = at::zeros_like(leaves[i]);
  }
  return out;
}

}  // namespace

const std::vector<TwinOp>& twin_ops() {
  static const std::vector<TwinOp> all = [] {
    std::vector<TwinOp> list;
    for (auto* topic : {loss_twins, norm_twins, moe_twins, loop_twins, swiglu_twins, attention_twins}) {
      for (TwinOp& op : topic()) list.push_back(std::move(op));
    }
    return list;
  }();
  return all;
}

std::vector<TwinResult> check_twins(at::Device device, at::ScalarType type, const std::string& filter) {
  std::vector<TwinResult> results;
  const at::AutoGradMode on(true);
  for (const TwinOp& op : twin_ops()) {
    if (op.name.find(filter) == std::string::npos) continue;
    TwinDraw draw(device, type, 17);
    for (const Twin& twin : op.make(draw)) {
      // Where single numbers are rounded to a hundredth, slack would let anything pass.
      const double slack = type == at::kBFloat16 ? std::min(twin.slack, 15.0) : twin.slack;
      TwinResult r{op.name, twin.size, 0, 0, rounding(type), slack * rounding(type), {}};
      try {
        const Outcome fused = run(twin.fused, twin.inputs, 77), composite = run(twin.composite, twin.inputs, 77);
        if (fused.outputs.size() != composite.outputs.size()) throw std::logic_error("different numbers of outputs");
        for (size_t i = 0; i < fused.outputs.size(); ++i) {
          r.forward = std::max(r.forward, difference(fused.outputs[i], composite.outputs[i]));
        }
        for (size_t i = 0; i < fused.gradients.size(); ++i) {
          r.backward = std::max(r.backward, difference(fused.gradients[i], composite.gradients[i]));
        }
      } catch (const std::exception& e) {
        r.error = e.what();
      }
      results.push_back(std::move(r));
    }
  }
  return results;
}

}  // namespace mythos
