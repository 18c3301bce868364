#include "model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Recomputed : torch::autograd::Function<Recomputed> {
  struct Held : torch::CustomClassHolder {
    explicit Held(RecomputedBody b) : body(std::move(b)) {}
    RecomputedBody body;
  };

  static variable_list forward(AutogradContext* ctx, const at::Tensor& h, const at::Tensor& e, RecomputedBody body) {
    ctx->save_for_backward({h, e});
    variable_list out = body(h, e);
    ctx->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(body)));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto held = c10::static_intrusive_pointer_cast<Held>(ctx->saved_data["body"].toCapsule());
    at::Tensor h = saved[0].detach().set_requires_grad(true);
    at::Tensor e = saved[1].detach().set_requires_grad(true);
    {
      const at::AutoGradMode on(true);
      torch::autograd::backward(held->body(h, e), grads);
    }
    return {h.grad(), e.grad(), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(const at::Tensor& h, const at::Tensor& e, RecomputedBody body) {
  return Recomputed::apply(h, e, std::move(body));
}

}  // namespace mythos
