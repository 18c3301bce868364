#include "kernels/swiglu.h"

#include "kernels/cpu/rows.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos {

at::Tensor swiglu_reference(const at::Tensor& joined) {
  const auto halves = joined.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

at::Tensor swiglu_forward(const at::Tensor& joined) {
  if (!rows_apply(joined)) return swiglu_reference(joined);
  const int64_t f = joined.size(-1) / 2;
  const int64_t rows = joined.numel() / std::max<int64_t>(2 * f, 1);
  auto shape = joined.sizes().vec();
  shape.back() = f;
  at::Tensor y = at::empty(shape, joined.options());
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

at::Tensor swiglu_backward(const at::Tensor& joined, const at::Tensor& dy) {
  if (!rows_apply(joined)) {
    const auto type = accumulate_type(joined.scalar_type());
    const auto halves = joined.to(type).chunk(2, -1);
    const at::Tensor d = dy.to(type);
    const at::Tensor sigmoid = halves[0].sigmoid();
    const at::Tensor dgate = d * halves[1] * sigmoid * (1 + halves[0] * (1 - sigmoid));
    return at::cat({dgate, d * halves[0] * sigmoid}, -1).to(joined.scalar_type());
  }
  const int64_t f = joined.size(-1) / 2;
  const int64_t rows = joined.numel() / std::max<int64_t>(2 * f, 1);
  at::Tensor grad = at::empty_like(joined);
  const at::Tensor d = dy.contiguous();
  AT_DISPATCH_FLOATING_TYPES(joined.scalar_type(), "swiglu_backward", [&] {
    const auto* in = joined.const_data_ptr<scalar_t>();
    const auto* dp = d.const_data_ptr<scalar_t>();
    auto* out = grad.mutable_data_ptr<scalar_t>();
    for_row_parts(rows, row_parts(rows, f), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        cpu::swiglu_backward_row<scalar_t>(in + r * 2 * f, in + r * 2 * f + f, dp + r * f, f, out + r * 2 * f,
                                           out + r * 2 * f + f);
      }
    });
  });
  return grad;
}

namespace {

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& joined) {
    const at::Tensor in = joined.contiguous();
    ctx->save_for_backward({in});
    return swiglu_forward(in);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {swiglu_backward(ctx->get_saved_variables()[0], grads[0])};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& joined) { return SwiGlu::apply(joined); }

}  // namespace mythos
