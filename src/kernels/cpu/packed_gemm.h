// Matrix products of floats for processors on which the BLAS in LibTorch stays well below the multiply-add units.
// The order of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), with one change: the
// operand that is read in rows along k is not copied, the micro-kernel broadcasts from its rows.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// A matrix in memory: element (i, j) is data[i * row + j * column].
struct MatrixView {
  const float* data = nullptr;
  int64_t row = 0, column = 0;
};

/// Whether packed_gemm() can run here: AVX2 and FMA.
bool packed_gemm_runs();
/// Whether it is the faster one here: it runs, and the processor is an AMD without AVX-512. Measured on Zen 3 only;
/// elsewhere BLAS is taken.
bool packed_gemm_pays();
/// Whether it takes these operands: each has one stride of 1.
bool packed_gemm_takes(const MatrixView& a, const MatrixView& b);

/// C[m, n] = A[m, k] B[k, n], or added to C; rows of C are `stride` apart. C overlaps neither A nor B. Uses at's
/// threads; each element of C is summed in the same order whatever their number. Sizes of 0 are allowed.
void packed_gemm(int64_t m, int64_t n, int64_t k, MatrixView a, MatrixView b, bool accumulate, float* c,
                 int64_t stride);

}  // namespace mythos::cpu
