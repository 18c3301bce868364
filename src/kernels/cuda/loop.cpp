#include "kernels/cuda/loop.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/loop.h"
#include "kernels/part.h"
#include "kernels/product.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos::cuda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor delivered(const at::Tensor& gradient, const at::Tensor& sink, const at::Tensor& weight) {
  const at::Tensor shaped = gradient.view(weight.sizes());
  if (!sink.defined()) return shaped.to(weight.scalar_type());
  at::Tensor(sink).add_(shaped);
  return {};
}

struct Update : torch::autograd::Function<Update> {
  struct Inputs {
    at::Tensor h, e, low, lora, log_a, log_dt, b, halt, bias, cumulative, halted;
    double threshold = 0;
  };

  static LoopUpdateArgs arguments(const Inputs& in, const at::Tensor& state, const at::Tensor& p,
                                  const at::Tensor& weight) {
    LoopUpdateArgs a;
    a.type = type_of(in.h);
    a.width = in.h.size(-1);
    a.rows = in.h.numel() / a.width;
    a.rank = in.low.size(-1);
    a.h = in.h.const_data_ptr(), a.e = in.e.const_data_ptr();
    a.low = in.low.const_data_ptr(), a.lora = in.lora.const_data_ptr();
    a.log_a = in.log_a.const_data_ptr(), a.log_dt = in.log_dt.const_data_ptr(), a.b = in.b.const_data_ptr();
    a.halt = in.halt.const_data_ptr(), a.bias = in.bias.const_data_ptr();
    a.threshold = in.threshold;
    a.low_bound = decay_low, a.high_bound = decay_high;
    a.cumulative = in.cumulative.const_data_ptr();
    a.halted = in.halted.const_data_ptr<bool>();
    a.state = state.data_ptr(), a.p = p.data_ptr(), a.weight = weight.data_ptr();
    return a;
  }

  static variable_list forward(AutogradContext* ctx, const Variable& h, const Variable& e, const Variable& u_,
                               const Variable& low, const Variable& sum_, const Variable& cumulative,
                               const at::Tensor& halted, const Variable& lora, const Variable& log_a,
                               const Variable& log_dt, const Variable& b, const Variable& halt, const Variable& bias,
                               const std::vector<at::Tensor>& sinks, double threshold) {
    const PartScope scope(Part::elementwise);
    const Inputs in{h.contiguous(), e.contiguous(), low.contiguous(),        lora.contiguous(),   log_a,    log_dt, b,
                    halt,           bias,           cumulative.contiguous(), halted.contiguous(), threshold};
    const at::Tensor u = u_.contiguous(), sum = sum_.contiguous();
    const at::Tensor state = at::empty_like(in.h), sum_out = at::empty_like(sum);
    const at::Tensor p = at::empty_like(in.cumulative), weight = at::empty_like(p), next = at::empty_like(p);
    const at::Tensor halted_out = at::empty_like(in.halted);
    LoopUpdateArgs a = arguments(in, state, p, weight);
    a.u = u.const_data_ptr();
    a.sum = sum.const_data_ptr();
    a.sum_out = sum_out.data_ptr();
    a.cumulative_out = next.data_ptr();
    a.halted_out = halted_out.data_ptr<bool>();
    loop_update_forward(a, place_of(in.h));
    ctx->save_for_backward(
        {in.h, in.e, in.low, in.lora, log_a, log_dt, b, halt, bias, in.cumulative, in.halted, state, p, weight});
    ctx->saved_data["threshold"] = threshold;
    for (size_t i = 0; i < sinks.size(); ++i) ctx->saved_data[sink_names[i]] = sinks[i];
    ctx->mark_non_differentiable({p, weight, halted_out});
    ctx->set_materialize_grads(false);
    return {state, sum_out, next, halted_out, p, weight};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::elementwise);
    const auto s = ctx->get_saved_variables();
    const Inputs in{s[0], s[1], s[2], s[3], s[4],  s[5],
                    s[6], s[7], s[8], s[9], s[10], ctx->saved_data["threshold"].toDouble()};
    const at::Tensor &state = s[11], &p = s[12], &weight = s[13];
    const auto given = [](const at::Tensor& g) { return g.defined() ? g.contiguous() : at::Tensor(); };
    const at::Tensor dstate = given(grads[0]), dcumulative_out = given(grads[2]);
    const at::Tensor dsum = grads[1].defined() ? grads[1].contiguous() : at::zeros(state.sizes(), p.options());
    const at::Tensor dh = at::empty_like(in.h), de = at::empty_like(in.h), du = at::empty_like(in.h);
    const at::Tensor dlow = at::empty_like(in.low), dcumulative = at::empty_like(p);
    LoopUpdateBackwardArgs b;
    b.forward = arguments(in, state, p, weight);
    b.dstate = dstate.defined() ? dstate.const_data_ptr() : nullptr;
    b.dsum_out = dsum.const_data_ptr();
    b.dcumulative_out = dcumulative_out.defined() ? dcumulative_out.const_data_ptr() : nullptr;
    b.dh = dh.data_ptr(), b.de = de.data_ptr(), b.du = du.data_ptr();
    b.dlow = dlow.data_ptr(), b.dcumulative = dcumulative.data_ptr();
    b.parts = gradient_parts(b.forward.rows);
    const int64_t d = b.forward.width;
    const at::Tensor sums = at::empty({b.parts, 3 * d + 1}, p.options());
    b.sums = sums.data_ptr();
    loop_update_backward(b, place_of(in.h));

    const at::Tensor all = deliver_parts(sums, {}, p.scalar_type());
    const at::Tensor dx = all.narrow(0, 0, d) * injection_slope(in.log_a, in.log_dt);
    auto& data = ctx->saved_data;
    const auto sink = [&data](size_t i) { return data[sink_names[i]].toTensor(); };
    const at::Tensor rows = in.low.view({-1, b.forward.rank});
    const at::Tensor dlora = weight_gradient(rows, du.view({-1, d}), sink(0));
    const at::Tensor none;
    return {dh,
            de,
            du,
            dlow,
            grads[1],
            dcumulative,
            none,
            dlora,
            delivered(dx, sink(1), in.log_a),
            delivered(dx.sum(), sink(2), in.log_dt),
            delivered(all.narrow(0, d, d), sink(3), in.b),
            delivered(all.narrow(0, 2 * d, d), sink(4), in.halt),
            delivered(all.narrow(0, 3 * d, 1), sink(5), in.bias),
            none,
            none};
  }

  static constexpr std::array sink_names{"lora", "log_a", "log_dt", "b", "halt", "bias"};
};

}  // namespace

LoopStep loop_update(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                     const at::Tensor& out, HaltingState& halting, const LoopWeights& w, double threshold) {
  const auto r = Update::apply(
      h, e, u, low, out, halting.cumulative, halting.halted, w.lora.value, w.log_a.value, w.log_dt.value, w.b.value,
      w.halt.value, w.bias.value,
      std::vector<at::Tensor>{w.lora.grad, w.log_a.grad, w.log_dt.grad, w.b.grad, w.halt.grad, w.bias.grad}, threshold);
  halting = {r[2], r[3]};
  return {r[0], {r[1], r[4], r[5]}};
}

}  // namespace mythos::cuda
