// Matrix products on plain pointers, for kernels that work tile by tile.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// C = alpha op(A) op(B) + beta C, all row-major; op(A) is m x k, op(B) k x n, transposed in memory where its flag is
/// set; the leading dimensions are distances between rows in memory. Where beta is 0, C is not read. Goes to the BLAS
/// in LibTorch, inside a parallel region on the calling thread alone. T is float or double. Sizes must fit an int.
template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

/// The same through tensors that view the pointers: what gemm() does where LibTorch shows no BLAS.
template <class T>
void gemm_of_views(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                   int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

/// Whether gemm() calls BLAS itself.
bool gemm_has_blas();

/// While it lives, BLAS calls of this thread run on it alone (where BLAS is MKL): small products neither wake other
/// threads nor depend on how many there are.
class SerialBlas {
 public:
  SerialBlas();
  ~SerialBlas();
  SerialBlas(const SerialBlas&) = delete;
  SerialBlas& operator=(const SerialBlas&) = delete;

 private:
  int before_ = 0;
};

}  // namespace mythos::cpu
