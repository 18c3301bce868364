#include "kernels/product.h"

#include "kernels/cpu/packed_gemm.h"

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
  if (accumulate) {
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

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return product(x.reshape({-1, x.size(-1)}), weight.t()).view(shape);
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& sink) {
  const at::Tensor left = dy.reshape({-1, dy.size(-1)}).t();
  const at::Tensor right = x.reshape({-1, x.size(-1)});
  if (!sink.defined()) return product(left, right);
  multiply_add(sink, left, right);
  return {};
}

}  // namespace mythos
