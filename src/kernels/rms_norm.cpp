#include "kernels/rms_norm.h"

#include "kernels/cpu/rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& w, const GradientBuffer& grad) {
    const at::Tensor in = x.contiguous();
    const int64_t d = in.size(-1);
    const int64_t rows = in.numel() / std::max<int64_t>(d, 1);
    at::Tensor y = at::empty_like(in);
    at::Tensor rstd = at::empty({rows}, in.options());
    AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "rms_norm", [&] {
      const auto* xp = in.const_data_ptr<scalar_t>();
      const auto* wp = w.const_data_ptr<scalar_t>();
      auto* yp = y.mutable_data_ptr<scalar_t>();
      auto* rp = rstd.mutable_data_ptr<scalar_t>();
      for_row_parts(rows, row_parts(rows, d), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          rp[r] = cpu::rms_norm_row<scalar_t>(xp + r * d, wp, d, static_cast<scalar_t>(rms_norm_eps), yp + r * d);
        }
      });
    });
    ctx->save_for_backward({in, w, rstd});
    ctx->saved_data["grad"] = grad.tensor;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& w = saved[1];
    const at::Tensor dy = grads[0].contiguous();
    const int64_t d = x.size(-1);
    const int64_t rows = x.numel() / std::max<int64_t>(d, 1);
    const int64_t parts = row_parts(rows, d);
    at::Tensor dx = at::empty_like(x);
    at::Tensor dw = at::zeros({parts, d}, w.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm_backward", [&] {
      const auto* xp = x.const_data_ptr<scalar_t>();
      const auto* wp = w.const_data_ptr<scalar_t>();
      const auto* rp = saved[2].const_data_ptr<scalar_t>();
      const auto* gp = dy.const_data_ptr<scalar_t>();
      auto* dxp = dx.mutable_data_ptr<scalar_t>();
      auto* dwp = dw.mutable_data_ptr<scalar_t>();
      for_row_parts(rows, parts, [&](int64_t p, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          cpu::rms_norm_backward_row<scalar_t>(xp + r * d, wp, gp + r * d, rp[r], d, dxp + r * d, dwp + p * d);
        }
      });
    });
    at::Tensor total = parts == 1 ? dw.view({d}) : dw.sum(0);
    at::Tensor sink = ctx->saved_data["grad"].toTensor();
    if (sink.defined()) {
      sink.add_(total);
      total = at::Tensor();
    }
    return {dx, total, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight) {
  const auto type = accumulate_type(x.scalar_type());
  const at::Tensor wide = x.to(type);
  const at::Tensor rstd = (wide.square().mean(-1, true) + rms_norm_eps).rsqrt();
  return (wide * rstd * weight.to(type)).to(x.scalar_type());
}

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight) {
  const Weight w = in_type(weight, x.scalar_type());
  if (cuda::applies(x, w)) return cuda::rms_norm(x, w);
  if (!rows_apply(x) || w.value.scalar_type() != x.scalar_type()) return rms_norm_reference(x, w.value);
  return RmsNorm::apply(x, w.value, GradientBuffer{w.grad});
}

ResidualNorm residual_norm_reference(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight) {
  const at::Tensor sum = x + added;
  return {sum, rms_norm_reference(sum, weight)};
}

ResidualNorm residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight) {
  const Weight w = in_type(weight, x.scalar_type());
  if (cuda::applies(x, w)) {
    const auto [sum, y] = cuda::residual_norm(x, added, w);
    return {sum, y};
  }
  const at::Tensor sum = x + added;
  return {sum, rms_norm(sum, w)};
}

}  // namespace mythos
