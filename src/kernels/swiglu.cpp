#include "kernels/swiglu.h"

#include "kernels/cpu/rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/product.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos {

at::Tensor swiglu_reference(const at::Tensor& joined) {
  const auto halves = joined.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor swiglu_forward(const at::Tensor& joined) {
  if (cuda::applies(joined)) return cuda::swiglu_forward(joined);
  if (!rows_apply(joined)) return swiglu_reference(joined);
  const int64_t rows = joined.size(0);
  const int64_t f = joined.size(1) / 2;
  at::Tensor y = at::empty({rows, f}, joined.options());
  AT_DISPATCH_FLOATING_TYPES(joined.scalar_type(), "swiglu", [&] {
    const auto* in = joined.const_data_ptr<scalar_t>();
    auto* out = y.mutable_data_ptr<scalar_t>();
    for_row_parts(rows, row_parts(rows, f), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        cpu::swiglu_row<scalar_t>(in + r * 2 * f, in + r * 2 * f + f, f, out + r * f);
      }
    });
  });
  return y;
}

SwigluBackward swiglu_backward(const at::Tensor& joined, const at::Tensor& dy, const at::Tensor& scale) {
  if (cuda::applies(joined)) return cuda::swiglu_backward(joined, dy, scale);
  SwigluBackward result;
  if (!rows_apply(joined)) {
    const auto type = accumulate_type(joined.scalar_type());
    const auto halves = joined.to(type).chunk(2, -1);
    const at::Tensor sigmoid = halves[0].sigmoid();
    const at::Tensor y = halves[0] * sigmoid * halves[1];
    at::Tensor d = dy.to(type);
    at::Tensor act = y;
    if (scale.defined()) {
      result.dscale = (d * y).sum(1);
      d = d * scale.unsqueeze(1);
      act = y * scale.unsqueeze(1);
    }
    const at::Tensor dgate = d * halves[1] * sigmoid * (1 + halves[0] * (1 - sigmoid));
    result.act = act.to(joined.scalar_type());
    result.djoined = at::cat({dgate, d * halves[0] * sigmoid}, -1).to(joined.scalar_type());
    return result;
  }
  const int64_t rows = joined.size(0);
  const int64_t f = joined.size(1) / 2;
  result.act = at::empty({rows, f}, joined.options());
  result.djoined = at::empty_like(joined);
  if (scale.defined()) result.dscale = at::empty({rows}, joined.options());
  AT_DISPATCH_FLOATING_TYPES(joined.scalar_type(), "swiglu_backward", [&] {
    const auto* in = joined.const_data_ptr<scalar_t>();
    const auto* dp = dy.const_data_ptr<scalar_t>();
    const auto* sp = scale.defined() ? scale.const_data_ptr<scalar_t>() : nullptr;
    auto* act = result.act.mutable_data_ptr<scalar_t>();
    auto* out = result.djoined.mutable_data_ptr<scalar_t>();
    auto* ds = scale.defined() ? result.dscale.mutable_data_ptr<scalar_t>() : nullptr;
    for_row_parts(rows, row_parts(rows, f), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * 2 * f;
        const scalar_t dot =
            cpu::swiglu_backward_row<scalar_t>(in + at, in + at + f, dp + r * f, sp != nullptr ? sp[r] : scalar_t(1), f,
                                               act + r * f, out + at, out + at + f);
        if (ds != nullptr) ds[r] = dot;
      }
    });
  });
  return result;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct FeedForward : torch::autograd::Function<FeedForward> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& gate_up, const Variable& down,
                          const GradientBuffer& gate_up_grad, const GradientBuffer& down_grad, Part part) {
    const PartScope scope(part);
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const at::Tensor joined = project(rows, gate_up);
    ctx->save_for_backward({rows, gate_up, down, joined});
    ctx->saved_data["gate_up_grad"] = gate_up_grad.tensor;
    ctx->saved_data["down_grad"] = down_grad.tensor;
    ctx->saved_data["part"] = static_cast<int64_t>(part);
    ctx->saved_data["shape"] = x.sizes().vec();
    return project(swiglu_forward(joined), down).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(static_cast<Part>(ctx->saved_data["part"].toInt()));
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate_up = saved[1], &down = saved[2], &joined = saved[3];
    const at::Tensor dy = grads[0].reshape({x.size(0), -1});
    const SwigluBackward b = swiglu_backward(joined, product(dy, down), {});
    const at::Tensor ddown = weight_gradient(dy, b.act, ctx->saved_data["down_grad"].toTensor());
    const at::Tensor dgate_up = weight_gradient(b.djoined, x, ctx->saved_data["gate_up_grad"].toTensor());
    const at::Tensor dx = product(b.djoined, gate_up).view(ctx->saved_data["shape"].toIntVector());
    return {dx, dgate_up, ddown, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor feed_forward(const at::Tensor& x, const Weight& gate_up, const Weight& down, Part part) {
  return FeedForward::apply(x, gate_up.value, down.value, GradientBuffer{gate_up.grad}, GradientBuffer{down.grad},
                            part);
}

at::Tensor feed_forward_reference(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return at::linear(swiglu_reference(at::linear(x, gate_up)), down);
}

}  // namespace mythos
