#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <bit>
#include <limits>

// LibTorch's x86-64 builds export their BLAS; others may hide it, then these stay null. Sizes are passed as 64 bits:
// in memory of this byte order a BLAS with 32-bit integers reads the same numbers.
extern "C" {
__attribute__((weak)) void sgemm_(const char*, const char*, const int64_t*, const int64_t*, const int64_t*,
                                  const float*, const float*, const int64_t*, const float*, const int64_t*,
                                  const float*, float*, const int64_t*);
__attribute__((weak)) void dgemm_(const char*, const char*, const int64_t*, const int64_t*, const int64_t*,
                                  const double*, const double*, const int64_t*, const double*, const int64_t*,
                                  const double*, double*, const int64_t*);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace mythos::cpu {
namespace {

static_assert(std::endian::native == std::endian::little);

void check_fit(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0 && size <= std::numeric_limits<int>::max(), "gemm: a size of ", size, " does not fit BLAS");
  }
}

template <class T>
at::Tensor view(const T* data, bool transposed, int64_t rows, int64_t columns, int64_t stride) {
  const auto type = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
  at::Tensor t =
      at::from_blob(const_cast<T*>(data), transposed ? at::IntArrayRef{columns, rows} : at::IntArrayRef{rows, columns},
                    {stride, 1}, type);
  return transposed ? t.t() : t;
}

}  // namespace

bool gemm_has_blas() { return sgemm_ != nullptr && dgemm_ != nullptr; }

SerialBlas::SerialBlas() {
  if (MKL_Set_Num_Threads_Local != nullptr) before_ = MKL_Set_Num_Threads_Local(1);
}
SerialBlas::~SerialBlas() {
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(before_);
}

template <class T>
void gemm_of_views(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                   int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  const at::NoGradGuard no_grad;
  at::Tensor out = view(c, false, m, n, ldc);
  out.addmm_(view(a, transpose_a, m, k, lda), view(b, transpose_b, k, n, ldb), beta, alpha);
}

template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  check_fit({m, n, k, lda, ldb, ldc});
  if (m == 0 || n == 0) return;
  if (!gemm_has_blas()) {
    gemm_of_views(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  // BLAS counts by columns: it sees the transposed matrices, and C^T = op(B)^T op(A)^T.
  const char* flag_a = transpose_a ? "T" : "N";
  const char* flag_b = transpose_b ? "T" : "N";
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(flag_b, flag_a, &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
  } else {
    dgemm_(flag_b, flag_a, &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
  }
}

#define MYTHOS_GEMM(T)                                                                                                \
  template void gemm(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*, int64_t); \
  template void gemm_of_views(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*,  \
                              int64_t);
MYTHOS_GEMM(float)
MYTHOS_GEMM(double)
#undef MYTHOS_GEMM

}  // namespace mythos::cpu
