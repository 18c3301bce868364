#include "kernels/cuda/grouped.h"

#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/place.h"
#include "kernels/product.h"

#ifdef MYTHOS_CUDA
#include <ATen/ops/_grouped_mm.h>
#endif

namespace mythos::cuda {
namespace {

#ifdef MYTHOS_CUTLASS
constexpr bool cutlass_is_here = true;
#else
constexpr bool cutlass_is_here = false;
#endif

// f(group, first row, rows) for groups that have any.
template <class F>
void for_groups(const at::Tensor& ends, const F& f) {
  const at::Tensor on_host = ends.cpu();
  const auto* end = on_host.const_data_ptr<int32_t>();
  int64_t begin = 0;
  for (int64_t g = 0; g < on_host.numel(); ++g) {
    if (end[g] > begin) f(g, begin, end[g] - begin);
    begin = end[g];
  }
}

#ifdef MYTHOS_CUTLASS
void run_cutlass(GroupedForm form, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t m,
                 int64_t n, int64_t k, const at::Tensor& ends) {
  GroupedGemmArgs args;
  args.form = form;
  args.groups = static_cast<int>(ends.numel());
  args.m = static_cast<int>(m), args.n = static_cast<int>(n), args.k = static_cast<int>(k);
  args.ends = ends.const_data_ptr<int32_t>();
  args.a = a.const_data_ptr(), args.b = b.const_data_ptr(), args.out = out.data_ptr();
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(grouped_workspace(args.groups))}, a.options().dtype(at::kByte));
  args.workspace = workspace.data_ptr();
  args.stream = place_of(a).stream;
  on_device::grouped_gemm(args);
}
#endif

}  // namespace

const char* name_of(GroupedBackend backend) {
  switch (backend) {
    case GroupedBackend::native:
      return "LibTorch's grouped GEMM";
    case GroupedBackend::cutlass:
      return "CUTLASS's grouped GEMM";
    case GroupedBackend::loop:
      return "a GEMM for each expert, with a wait for the device";
  }
  return "";
}

GroupedBackend grouped_backend(at::ScalarType type, int capability, std::initializer_list<int64_t> widths,
                               bool has_cutlass) {
  const bool fits = std::all_of(widths.begin(), widths.end(), [](int64_t w) { return w % 8 == 0; });
  if (type != at::kBFloat16 || !fits || capability < 80) return GroupedBackend::loop;
  // Elsewhere _grouped_mm itself is a loop with a wait.
  if (capability == 90 || capability / 10 == 10) return GroupedBackend::native;
  return has_cutlass ? GroupedBackend::cutlass : GroupedBackend::loop;
}

GroupedBackend grouped_backend(const at::Tensor& rows, std::initializer_list<int64_t> widths) {
  return grouped_backend(rows.scalar_type(), compute_capability(rows.device()), widths, cutlass_is_here);
}

at::Tensor grouped_product(const at::Tensor& in, const at::Tensor& weight, bool transpose, const at::Tensor& ends) {
  const int64_t k = in.size(1);
  const int64_t n = weight.size(transpose ? 1 : 2);
  TORCH_INTERNAL_ASSERT(weight.size(transpose ? 2 : 1) == k && ends.numel() == weight.size(0));
  switch (grouped_backend(in, {n, k})) {
    case GroupedBackend::native:
#ifdef MYTHOS_CUDA
      return at::_grouped_mm(in, transpose ? weight.transpose(1, 2) : weight, ends);
#endif
    case GroupedBackend::cutlass:
#ifdef MYTHOS_CUTLASS
    {
      const at::Tensor out = at::empty({in.size(0), n}, in.options());
      run_cutlass(transpose ? GroupedForm::rows_transposed : GroupedForm::rows, in, weight, out, 0, n, k, ends);
      return out;
    }
#endif
    case GroupedBackend::loop:
      break;
  }
  const at::Tensor out = at::empty({in.size(0), n}, in.options());
  for_groups(ends, [&](int64_t g, int64_t begin, int64_t rows) {
    const at::Tensor w = weight.select(0, g);
    multiply(out.narrow(0, begin, rows), in.narrow(0, begin, rows), transpose ? w.t() : w);
  });
  return out;
}

void grouped_gradient(const at::Tensor& sink, const at::Tensor& left, const at::Tensor& right, const at::Tensor& ends) {
  const int64_t m = left.size(1), n = right.size(1);
  TORCH_INTERNAL_ASSERT(sink.size(0) == ends.numel() && sink.size(1) == m && sink.size(2) == n);
  switch (grouped_backend(left, {m, n})) {
    case GroupedBackend::native:
#ifdef MYTHOS_CUDA
      // It has no form that adds.
      at::Tensor(sink).add_(at::_grouped_mm(left.t(), right, ends));
      return;
#endif
    case GroupedBackend::cutlass:
#ifdef MYTHOS_CUTLASS
      if (sink.scalar_type() == at::kFloat) {
        run_cutlass(GroupedForm::gradient, left, right, sink, m, n, 0, ends);
        return;
      }
#endif
    case GroupedBackend::loop:
      break;
  }
  for_groups(ends, [&](int64_t g, int64_t begin, int64_t rows) {
    multiply_add(sink.select(0, g), left.narrow(0, begin, rows).t(), right.narrow(0, begin, rows));
  });
}

}  // namespace mythos::cuda
