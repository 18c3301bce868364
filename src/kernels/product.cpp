#include "kernels/product.h"

#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/packed_gemm.h"
#include "kernels/weight.h"

#include <ATen/record_function.h>

namespace mythos {
namespace {

cpu::MatrixView view(const at::Tensor& t) { return {t.const_data_ptr<float>(), t.stride(0), t.stride(1)}; }

bool floats_on_cpu(const at::Tensor& t) { return t.device().is_cpu() && t.scalar_type() == at::kFloat; }

// Smaller products, and those with vectors, are left to LibTorch.
bool is_large(int64_t m, int64_t n, int64_t k) { return std::min(m, n) >= 8 && k >= 8 && m * n * k >= 64 * 64 * 64; }

bool packed(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  if (!cpu::packed_gemm_pays() || !floats_on_cpu(out) || !floats_on_cpu(a) || !floats_on_cpu(b)) return false;
  if (!is_large(a.size(0), b.size(1), a.size(1)) || out.stride(1) != 1) return false;
  const cpu::MatrixView left = view(a), right = view(b);
  if (!cpu::packed_gemm_takes(left, right)) return false;
  RECORD_USER_SCOPE("mythos::product");  // time by parts sees it as it sees aten::mm
  cpu::packed_gemm(a.size(0), b.size(1), a.size(1), left, right, accumulate, out.mutable_data_ptr<float>(),
                   out.stride(0));
  return true;
}

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && a.size(1) == b.size(0) && out.size(0) == a.size(0) &&
                  out.size(1) == b.size(1),
              "a product ", a.sizes(), " x ", b.sizes(), " does not fit ", out.sizes());
  if (!packed(out, a, b, accumulate)) multiply_reference(out, a, b, accumulate);
}

}  // namespace

void multiply_reference(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  at::Tensor c = out;
  if (accumulate && out.scalar_type() != a.scalar_type()) {
    if (out.is_cuda() && out.scalar_type() == at::kFloat) {
      at::addmm_out(c, c, a, b, at::kFloat);  // a product of narrow numbers that sums in fp32 and in place
    } else {
      multiply(out, a.to(out.scalar_type()), b.to(out.scalar_type()), true);
    }
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { multiply(out, a, b, false); }
void multiply_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { multiply(out, a, b, true); }

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  multiply(out, a, b);
  return out;
}

at::Tensor product_wide(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
}

bool few_rows_apply(const at::Tensor& x, const at::Tensor& weight) {
  const auto type = weight.scalar_type();
  return rows_apply(x) && x.dim() == 2 && x.size(0) > 0 && x.size(0) <= cpu::few_rows_most &&
         weight.device().is_cpu() &&
         (type == x.scalar_type() || (type == at::kBFloat16 && x.scalar_type() == at::kFloat)) &&
         weight.stride(-1) == 1 && weight.stride(-2) >= weight.size(-1);
}

void multiply_few_rows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, Range rows, Range columns,
                       int64_t expert) {
  const int64_t stride = weight.stride(-2);
  const int64_t from = columns.first * stride + (weight.dim() == 3 ? expert * weight.stride(0) : 0);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "few_rows", [&] {
    const auto* in = x.const_data_ptr<scalar_t>() + rows.first * x.stride(0);
    auto* to = out.mutable_data_ptr<scalar_t>() + rows.first * out.stride(0) + columns.first;
    const auto run = [&](const auto* w) {
      cpu::few_rows(rows.count, x.size(1), in, x.stride(0), columns.count, w + from, stride, to, out.stride(0));
    };
    if (weight.scalar_type() == at::kBFloat16) {
      if constexpr (std::is_same_v<scalar_t, float>) run(reinterpret_cast<const cpu::Bf16*>(weight.const_data_ptr()));
    } else {
      run(weight.const_data_ptr<scalar_t>());
    }
  });
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  if (!few_rows_apply(rows, weight)) return product(rows, of_type(weight, x.scalar_type()).t()).view(shape);
  RECORD_USER_SCOPE("mythos::few_rows");
  const at::Tensor in = rows.stride(1) == 1 ? rows : rows.contiguous();
  at::Tensor out = at::empty({in.size(0), weight.size(0)}, in.options());
  for_row_chunks(weight.size(0), weight.size(1), [&](int64_t begin, int64_t end) {
    multiply_few_rows(out, in, weight, {0, in.size(0)}, {begin, end - begin});
  });
  return out.view(shape);
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& sink) {
  const at::Tensor left = dy.reshape({-1, dy.size(-1)}).t();
  const at::Tensor right = x.reshape({-1, x.size(-1)});
  if (!sink.defined()) return product(left, right);
  multiply_add(sink, left, right);
  return {};
}

}  // namespace mythos
