// Twins of SwiGLU, at the sizes where index arithmetic could go wrong.
#include "kernels/swiglu.h"
#include "step/twin_list.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// scale * swiglu(joined) as one op, as routed_experts() has it inside. The gradient is scaled act's own: `act` must be
// scale * y, so it is an output of the backward pass that the twin sees as the op's.
struct Scaled : torch::autograd::Function<Scaled> {
  static Variable forward(AutogradContext* ctx, const Variable& joined, const Variable& scale, bool scaled) {
    ctx->save_for_backward({joined, scale});
    ctx->saved_data["scaled"] = scaled;
    const at::Tensor none, y = swiglu_forward(joined);
    // The activation that the backward pass hands out.
    const at::Tensor act = swiglu_backward(joined, at::zeros_like(y), scaled ? scale : none).act;
    return scaled ? act : y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const bool scaled = ctx->saved_data["scaled"].toBool();
    const at::Tensor none;
    const SwigluBackward b = swiglu_backward(saved[0], grads[0].contiguous(), scaled ? saved[1] : none);
    return {b.djoined, scaled ? b.dscale.to(saved[1].scalar_type()) : none, none};
  }
};

at::Tensor composite(const at::Tensor& joined, const at::Tensor& scale) {
  const auto wide = accumulate_type(joined.scalar_type());
  at::Tensor y = swiglu_reference(joined.to(wide));
  if (scale.defined()) y = y * scale.to(wide).unsqueeze(1);
  return y.to(joined.scalar_type());
}

std::vector<Twin> swiglus(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const int64_t width : {1, 2, 7, 8, 16, 31, 32, 33, 264, 2056}) {
    for (const int64_t rows : {1, 5}) {
      all.push_back({fmt::format("{} x {}", rows, width),
                     [](const Tensors& in) { return Tensors{Scaled::apply(in[0], in[0], false)}; },
                     [](const Tensors& in) { return Tensors{composite(in[0], {})}; },
                     {draw.normal({rows, 2 * width})}});
      all.push_back({fmt::format("{} x {} scaled", rows, width),
                     [](const Tensors& in) { return Tensors{Scaled::apply(in[0], in[1], true)}; },
                     [](const Tensors& in) { return Tensors{composite(in[0], in[1])}; },
                     {draw.normal({rows, 2 * width}), draw.normal_wide({rows})},
                     4});
    }
  }
  return all;
}

}  // namespace

std::vector<TwinOp> swiglu_twins() { return {{"swiglu", swiglus}}; }

}  // namespace mythos
