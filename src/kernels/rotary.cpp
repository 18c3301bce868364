#include "kernels/rotary.h"

#include "kernels/cpu/rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace mythos {

RotaryTable::RotaryTable(int64_t rotary_dim, double theta, at::Device device)
    : dim_(rotary_dim), theta_(theta), device_(device) {}

RotaryTable::Slice RotaryTable::slice(int64_t begin, int64_t count) {
  if (begin + count > rows_) {
    const int64_t rows = std::max<int64_t>(begin + count, std::max<int64_t>(256, 2 * rows_));
    const at::Tensor exponent = at::arange(0, dim_, 2, at::kFloat) / static_cast<float>(dim_);
    const at::Tensor frequency = at::reciprocal(at::pow(at::Scalar(static_cast<float>(theta_)), exponent)).contiguous();
    const int64_t half = dim_ / 2;
    at::Tensor c = at::empty({rows, half}, at::kFloat);
    at::Tensor s = at::empty({rows, half}, at::kFloat);
    const auto* f = frequency.const_data_ptr<float>();
    auto* cp = c.mutable_data_ptr<float>();
    auto* sp = s.mutable_data_ptr<float>();
    for (int64_t p = 0; p < rows; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(p) * f[i];
        cp[p * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
        sp[p * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
    cos_ = c.to(device_);
    sin_ = s.to(device_);
    rows_ = rows;
  }
  return {cos_.narrow(0, begin, count), sin_.narrow(0, begin, count)};
}

at::Tensor rotate_reference(const at::Tensor& x, const RotaryTable::Slice& positions) {
  const auto type = accumulate_type(x.scalar_type());
  auto pairs = x.sizes().vec();
  pairs.back() /= 2;
  pairs.push_back(2);
  // A copy: a complex view wants to begin at an even number, and columns of a joined projection may not.
  const at::Tensor z = at::view_as_complex(x.to(type).reshape(pairs).clone(at::MemoryFormat::Contiguous));
  const at::Tensor turn = at::complex(positions.cos.to(type), positions.sin.to(type)).unsqueeze(1);
  return at::view_as_real(z * turn).flatten(-2).to(x.scalar_type());
}

namespace {

at::Tensor rotated(const at::Tensor& x, const at::Tensor& c, const at::Tensor& s, int sign) {
  const at::Tensor in = x.contiguous();
  const int64_t t_count = in.size(1);
  const int64_t heads = in.size(2);
  const int64_t d = in.size(3);
  at::Tensor out = at::empty_like(in);
  AT_DISPATCH_FLOATING_TYPES(in.scalar_type(), "rotate", [&] {
    const auto* xp = in.const_data_ptr<scalar_t>();
    auto* op = out.mutable_data_ptr<scalar_t>();
    const auto* cp = c.const_data_ptr<float>();
    const auto* sp = s.const_data_ptr<float>();
    const int64_t rows = in.size(0) * t_count;
    for_row_parts(rows, row_parts(rows, heads * d), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = r % t_count;
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t at = (r * heads + h) * d;
          cpu::rotate_row<scalar_t>(xp + at, cp + t * d / 2, sp + t * d / 2, static_cast<scalar_t>(sign), d / 2,
                                    op + at);
        }
      }
    });
  });
  return out;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& c,
                            const at::Tensor& s) {
    ctx->save_for_backward({c, s});
    return rotated(x, c, s, 1);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& positions) {
  if (cuda::applies(x)) return cuda::rotate(x, positions);
  if (!rows_apply(x)) return rotate_reference(x, positions);
  return Rotate::apply(x, positions.cos, positions.sin);
}

}  // namespace mythos
