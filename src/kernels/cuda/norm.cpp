#include "kernels/cuda/norm.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"
#include "kernels/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos::cuda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Memory of rows without gaps inside them: what a norm reads may be columns of a joined projection.
at::Tensor rows_of(const at::Tensor& t) {
  const at::Tensor rows = t.dim() == 2 ? t : t.flatten(0, -2);
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

struct SumNorm : torch::autograd::Function<SumNorm> {
  struct Options {
    at::Tensor signal, grad;  // may be undefined
    bool added = false;       // else `added` is not looked at
    bool keeps_sum = false;   // the sum is returned too, before the norm
  };

  static NormArgs arguments(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                            const at::Tensor& rstd, const at::Tensor& signal) {
    NormArgs a;
    a.type = type_of(x);
    a.rows = x.size(0);
    a.width = x.size(1);
    a.x_stride = x.stride(0);
    a.x = x.const_data_ptr();
    a.added = added.defined() ? added.const_data_ptr() : nullptr;
    a.signal = signal.defined() ? signal.const_data_ptr() : nullptr;
    a.weight = weight.const_data_ptr();
    a.eps = rms_norm_eps;
    a.rstd = rstd.data_ptr();
    return a;
  }

  static variable_list forward(AutogradContext* ctx, const Variable& x_, const Variable& added_, const Variable& w,
                               const Options& options) {
    const PartScope scope(Part::elementwise);
    const at::Tensor x = rows_of(x_);
    const at::Tensor added = options.added ? added_.contiguous() : at::Tensor();
    const at::Tensor y = at::empty(x_.sizes(), x.options());
    const at::Tensor sum = options.keeps_sum ? at::empty_like(y) : at::Tensor();
    const at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(accumulate_type(x.scalar_type())));
    NormArgs a = arguments(x, added, w, rstd, options.signal);
    a.y = y.data_ptr();
    if (sum.defined()) a.sum = sum.data_ptr();
    norm_forward(a, place_of(x));
    // What the norm was taken of: its terms, or where it was written their sum.
    const at::Tensor none;
    ctx->save_for_backward(sum.defined() ? variable_list{sum, none, w, rstd} : variable_list{x, added, w, rstd});
    ctx->saved_data["signal"] = options.signal;
    ctx->saved_data["grad"] = options.grad;
    ctx->saved_data["added"] = options.added;
    ctx->saved_data["shape"] = x_.sizes().vec();
    ctx->set_materialize_grads(false);
    return sum.defined() ? variable_list{sum, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::elementwise);
    const auto saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const bool has_sum = grads.size() == 2;
    const at::Tensor &dy_ = grads.back(), &w = saved[2], &rstd = saved[3];
    if (!dy_.defined()) return {grads[0], data["added"].toBool() ? grads[0] : at::Tensor(), {}, {}};
    const at::Tensor x = rows_of(saved[0]);
    const at::Tensor dy = dy_.contiguous();
    const at::Tensor dsum = has_sum && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const at::Tensor dx = at::empty(data["shape"].toIntVector(), x.options());
    NormBackwardArgs b;
    b.forward = arguments(x, saved[1], w, rstd, has_sum ? at::Tensor() : data["signal"].toTensor());
    b.dy = dy.const_data_ptr();
    b.dsum = dsum.defined() ? dsum.const_data_ptr() : nullptr;
    b.dx = dx.data_ptr();
    b.parts = gradient_parts(x.size(0));
    const at::Tensor dweight = at::empty({b.parts, x.size(1)}, rstd.options());
    b.dweight = dweight.data_ptr();
    norm_backward(b, place_of(x));
    return {dx, data["added"].toBool() ? dx : at::Tensor(),
            deliver_parts(dweight, data["grad"].toTensor(), w.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight) {
  return SumNorm::apply(x, x, weight.value, SumNorm::Options{{}, weight.grad, false, false})[0];
}

std::pair<at::Tensor, at::Tensor> residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight) {
  const auto both = SumNorm::apply(x, added, weight.value, SumNorm::Options{{}, weight.grad, true, true});
  return {both[0], both[1]};
}

at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& weight) {
  const at::Tensor wide = signal.to(accumulate_type(h.scalar_type()));
  return SumNorm::apply(h, e, weight.value, SumNorm::Options{wide, weight.grad, true, false})[0];
}

}  // namespace mythos::cuda
