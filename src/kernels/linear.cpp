#include "kernels/linear.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/product.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Linear : torch::autograd::Function<Linear> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& w, const GradientBuffer& grad) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["grad"] = grad.tensor;
    return project(x, w);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    weight_gradient(grads[0], saved[0], ctx->saved_data["grad"].toTensor());
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = project(grads[0], saved[1].t());
    return {dx, at::Tensor(), at::Tensor()};
  }
};

struct WideLinear : torch::autograd::Function<WideLinear> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& w, const GradientBuffer& grad) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["grad"] = grad.tensor;
    auto shape = x.sizes().vec();
    shape.back() = w.size(0);
    return product_wide(x.reshape({-1, x.size(-1)}), w.t()).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].to(saved[0].scalar_type());
    const at::Tensor dw = weight_gradient(dy, saved[0], ctx->saved_data["grad"].toTensor());
    return {project(dy, saved[1].t()), dw, at::Tensor()};
  }
};

struct Embedding : torch::autograd::Function<Embedding> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& ids, const Variable& table,
                          const GradientBuffer& grad) {
    ctx->save_for_backward({ids});
    ctx->saved_data["grad"] = grad.tensor;
    ctx->saved_data["rows"] = table.size(0);
    auto shape = ids.sizes().vec();
    shape.push_back(table.size(1));
    return at::index_select(table, 0, ids.reshape(-1)).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor ids = ctx->get_saved_variables()[0].reshape(-1);
    const at::Tensor dy = grads[0].reshape({ids.size(0), -1});
    at::Tensor sink = ctx->saved_data["grad"].toTensor();
    const bool own = !sink.defined();
    if (own) sink = at::zeros({ctx->saved_data["rows"].toInt(), dy.size(1)}, dy.options());
    if (cuda::applies(dy)) {
      cuda::embedding_gradient(ids, dy.contiguous(), sink);
    } else {
      sink.index_add_(0, ids, of_type(dy, sink.scalar_type()));
    }
    return {at::Tensor(), own ? sink : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  if (!at::GradMode::is_enabled()) return project(x, weight.value);
  if (!weight.grad.defined()) return at::linear(x, weight.value);
  return Linear::apply(x, weight.value, GradientBuffer{weight.grad});
}

at::Tensor linear_wide(const at::Tensor& x, const Weight& weight) {
  if (x.scalar_type() == accumulate_type(x.scalar_type())) return linear(x, weight);
  return WideLinear::apply(x, of_type(weight.value, x.scalar_type()), GradientBuffer{weight.grad});
}

at::Tensor embedding(const at::Tensor& ids, const Weight& table) {
  return Embedding::apply(ids, table.value, GradientBuffer{table.grad});
}

}  // namespace mythos
