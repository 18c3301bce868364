#include "kernels/cuda/moe.h"

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"
#include "kernels/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos::cuda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

RouteArgs route_arguments(const at::Tensor& logits, const at::Tensor& experts, const at::Tensor& weights) {
  RouteArgs a;
  a.type = type_of(weights);
  a.tokens = logits.size(0);
  a.experts = logits.size(1);
  a.chosen = experts.size(1);
  a.choice = experts.data_ptr<int64_t>();
  a.weights = weights.data_ptr();
  return a;
}

struct Route : torch::autograd::Function<Route> {
  static variable_list forward(AutogradContext* ctx, const Variable& logits_, const at::Tensor& bias_, bool has_bias,
                               int64_t top_k) {
    const PartScope scope(Part::experts);
    const at::Tensor logits = logits_.contiguous();
    const at::Tensor bias = has_bias ? bias_.to(logits.scalar_type()).contiguous() : at::Tensor();
    const at::Tensor experts = at::empty({logits.size(0), top_k}, logits.options().dtype(at::kLong));
    const at::Tensor weights = at::empty({logits.size(0), top_k}, logits.options());
    RouteArgs a = route_arguments(logits, experts, weights);
    a.logits = logits.const_data_ptr();
    a.bias = has_bias ? bias.const_data_ptr() : nullptr;
    route_forward(a, place_of(logits));
    ctx->save_for_backward({experts, weights});
    ctx->saved_data["experts"] = logits.size(1);
    ctx->mark_non_differentiable({experts});
    return {experts, weights};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::experts);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dweights = grads[1].contiguous();
    const at::Tensor dlogits = at::empty({dweights.size(0), ctx->saved_data["experts"].toInt()}, dweights.options());
    RouteBackwardArgs b;
    b.forward = route_arguments(dlogits, saved[0], saved[1]);
    b.dweights = dweights.const_data_ptr();
    b.dlogits = dlogits.data_ptr();
    route_backward(b, place_of(dweights));
    return {dlogits, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct Groups {
  at::Tensor ends;   // int32 [E]
  at::Tensor order;  // int32 [N*K]: the choice of each grouped row
  at::Tensor slot;   // int32 [N*K]: the grouped row of each choice
};

Groups group_by_expert(const at::Tensor& experts, int64_t n_experts) {
  const at::Tensor flat = experts.contiguous();
  const auto ints = flat.options().dtype(at::kInt);
  Groups g{at::empty({n_experts}, ints), at::empty({flat.numel()}, ints), at::empty({flat.numel()}, ints)};
  const at::Tensor counts = at::empty({group_chunks(flat.numel()), n_experts}, ints);
  GroupArgs a;
  a.choices = flat.numel();
  a.experts = n_experts;
  a.choice = flat.const_data_ptr<int64_t>();
  a.counts = counts.data_ptr<int32_t>();
  a.ends = g.ends.data_ptr<int32_t>();
  a.order = g.order.data_ptr<int32_t>();
  a.slot = g.slot.data_ptr<int32_t>();
  group_choices(a, place_of(flat));
  return g;
}

at::Tensor gathered(const at::Tensor& rows_, const at::Tensor& order, int64_t chosen) {
  const at::Tensor rows = rows_.contiguous();
  const at::Tensor out = at::empty({order.numel(), rows.size(1)}, rows.options());
  GatherArgs a;
  a.type = type_of(rows);
  a.rows = order.numel();
  a.width = rows.size(1);
  a.chosen = chosen;
  a.in = rows.const_data_ptr();
  a.order = order.const_data_ptr<int32_t>();
  a.out = out.data_ptr();
  gather_rows(a, place_of(rows));
  return out;
}

// `weights` and the addends may be undefined.
at::Tensor combined(const at::Tensor& rows, const Groups& g, const at::Tensor& weights, int64_t chosen,
                    const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor out = at::empty({g.slot.numel() / chosen, rows.size(1)}, rows.options());
  CombineArgs a;
  a.type = type_of(rows);
  a.tokens = out.size(0);
  a.width = out.size(1);
  a.chosen = chosen;
  a.rows = rows.const_data_ptr();
  a.slot = g.slot.const_data_ptr<int32_t>();
  a.weights = weights.defined() ? weights.const_data_ptr() : nullptr;
  a.first = first.defined() ? first.const_data_ptr() : nullptr;
  a.second = second.defined() ? second.const_data_ptr() : nullptr;
  a.out = out.data_ptr();
  combine_rows(a, place_of(rows));
  return out;
}

struct RoutedExperts : torch::autograd::Function<RoutedExperts> {
  struct Buffers {
    at::Tensor gate_up, down;  // gradients go there where they are defined
    int64_t addends = 0;       // of `first` and `second`
  };

  static at::Tensor forward(AutogradContext* ctx, const Variable& x, const Variable& gate_up, const Variable& down,
                            const at::Tensor& experts, const Variable& weights_, const Variable& first_,
                            const Variable& second_, const Buffers& buffers) {
    const PartScope scope(Part::experts);
    const int64_t k = experts.size(1);
    const Groups g = group_by_expert(experts, gate_up.size(0));
    const at::Tensor joined = grouped_product(gathered(x, g.order, k), gate_up, true, g.ends);
    const at::Tensor y = grouped_product(swiglu_forward(joined), down, true, g.ends);
    const at::Tensor weights = weights_.contiguous();
    // y is not kept: the gradient of the weights follows from the activations (see backward).
    ctx->save_for_backward({x, gate_up, down, weights, joined, g.ends, g.order, g.slot});
    ctx->saved_data["gate_up"] = buffers.gate_up;
    ctx->saved_data["down"] = buffers.down;
    ctx->saved_data["addends"] = buffers.addends;
    return combined(y, g, weights, k, buffers.addends > 0 ? first_.contiguous() : at::Tensor(),
                    buffers.addends > 1 ? second_.contiguous() : at::Tensor());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::experts);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate_up = saved[1], &down = saved[2], &weights = saved[3], &joined = saved[4];
    const Groups g{saved[5], saved[6], saved[7]};
    const int64_t k = weights.size(1);
    const at::Tensor none;
    const auto sink = [&](const char* name, const at::Tensor& weight, at::Tensor& own) {
      const at::Tensor& buffer = ctx->saved_data[name].toTensor();
      return buffer.defined() ? buffer : own = at::zeros_like(weight);
    };
    at::Tensor own_gate_up, own_down;
    const at::Tensor dgate_up = sink("gate_up", gate_up, own_gate_up), ddown = sink("down", down, own_down);

    const at::Tensor dy = gathered(grads[0], g.order, k);
    const at::Tensor dact = grouped_product(dy, down, false, g.ends);
    // d weights[n, j] = dy . down(act) = down^T(dy) . act, so the expert's output need not be kept.
    const at::Tensor scale = weights.reshape({-1}).index_select(0, g.order);
    const SwigluBackward b = swiglu_backward(joined, dact, scale);
    grouped_gradient(ddown, dy, b.act, g.ends);
    grouped_gradient(dgate_up, b.djoined, gathered(x, g.order, k), g.ends);
    const at::Tensor dxs = grouped_product(b.djoined, gate_up, false, g.ends);
    const at::Tensor dweights = b.dscale.index_select(0, g.slot).view_as(weights);
    const int64_t addends = ctx->saved_data["addends"].toInt();
    return {combined(dxs, g, none, k, none, none), own_gate_up, own_down, none, dweights, addends > 0 ? grads[0] : none,
            addends > 1 ? grads[0] : none,         none};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> route(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k) {
  const auto both = Route::apply(logits, bias.defined() ? bias : logits, bias.defined(), top_k);
  return {both[0], both[1]};
}

at::Tensor routed_experts(const at::Tensor& x, const Weight& gate_up, const Weight& down, const at::Tensor& experts,
                          const at::Tensor& weights, const std::vector<at::Tensor>& addends) {
  const auto fused = std::min<int64_t>(2, std::ssize(addends));
  const at::Tensor first = fused > 0 ? addends[0] : x, second = fused > 1 ? addends[1] : x;
  at::Tensor out = RoutedExperts::apply(x, gate_up.value, down.value, experts, weights, first, second,
                                        RoutedExperts::Buffers{gate_up.grad, down.grad, fused});
  for (size_t i = 2; i < addends.size(); ++i) out = out + addends[i];
  return out;
}

}  // namespace mythos::cuda
