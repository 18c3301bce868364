// Products of groups of rows with a matrix for each group, on the device: how many rows a group has is known only
// there.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace mythos::cuda {

/// Who multiplies.
enum class GroupedBackend {
  native,   ///< LibTorch's _grouped_mm: one kernel, bfloat16 on compute capability 9.0 and 10.x
  cutlass,  ///< CUTLASS's grouped GEMM (kernels/cuda/grouped_gemm.cu): one kernel, bfloat16 from 8.0 on
  loop,     ///< a product for each group: the numbers of rows are read by the host, which waits for the device
};
const char* name_of(GroupedBackend backend);

/// The best that is there: for numbers of this type, on a device of this compute capability (89 for 8.9; 0: the host),
/// with rows of these widths, and with CUTLASS compiled in or not. The first two want widths that are multiples of 8.
GroupedBackend grouped_backend(at::ScalarType type, int capability, std::initializer_list<int64_t> widths,
                               bool has_cutlass);
/// The same for what this program has and this tensor's device.
GroupedBackend grouped_backend(const at::Tensor& rows, std::initializer_list<int64_t> widths);

/// out[rows of e] = in[rows of e] W[e]^T, or W[e] where not `transpose`. in: [N, k]; weight: [E, n, k], or [E, k, n];
/// ends: int32 [E], one past the last row of each group, rising to N. Returns [N, n] in in's type.
at::Tensor grouped_product(const at::Tensor& in, const at::Tensor& weight, bool transpose, const at::Tensor& ends);

/// sink[e] += left[rows of e]^T right[rows of e]. left: [N, m]; right: [N, n]; sink: [E, m, n] in their type or fp32.
void grouped_gradient(const at::Tensor& sink, const at::Tensor& left, const at::Tensor& right, const at::Tensor& ends);

}  // namespace mythos::cuda
