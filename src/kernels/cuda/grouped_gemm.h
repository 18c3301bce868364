// CUTLASS's grouped GEMM with sizes that only the device knows. Raw memory here, tensors in grouped.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mythos::cuda {

enum class GroupedForm {
  rows_transposed,  ///< out[rows, n] = a[rows, k] b[g][n, k]^T, bfloat16
  rows,             ///< out[rows, n] = a[rows, k] b[g][k, n], bfloat16
  gradient,         ///< out[g][m, n] += a[rows, m]^T b[rows, n]; out fp32, a and b bfloat16
};

/// `n`, and `m` or `k` as above, are multiples of 8; memory is aligned to 16 bytes.
struct GroupedGemmArgs {
  GroupedForm form = GroupedForm::rows;
  int groups = 0;
  int m = 0, n = 0, k = 0;        ///< what is the same for every group
  const int32_t* ends = nullptr;  ///< [groups], rising
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  void* workspace = nullptr;  ///< grouped_workspace(groups) bytes, aligned to 16
  void* stream = nullptr;
};
size_t grouped_workspace(int groups);

namespace on_device {
void grouped_gemm(const GroupedGemmArgs& args);
}

}  // namespace mythos::cuda
