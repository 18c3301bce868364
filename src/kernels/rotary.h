// Rotary position embedding (RoFormer, Su et al., 2021) on adjacent pairs: (x[2i], x[2i+1]) is one complex number.
#pragma once

#include "kernels/weight.h"

namespace mythos {

/// Cosines and sines of position * f_i, f_i = 1 / theta^(2i/d), always fp32 and made on the CPU, whatever the model's
/// dtype: in bf16 positions above 256 would coincide. Grows with the positions asked for.
class RotaryTable {
 public:
  RotaryTable() = default;
  RotaryTable(int64_t rotary_dim, double theta, at::Device device);

  struct Slice {
    at::Tensor cos;  ///< [T, d/2] fp32, contiguous
    at::Tensor sin;
  };
  /// Rows for positions begin .. begin + count - 1.
  Slice slice(int64_t begin, int64_t count);

 private:
  int64_t dim_ = 0;
  double theta_ = 0;
  at::Device device_ = at::kCPU;
  int64_t rows_ = 0;
  at::Tensor cos_, sin_;
};

/// Rotates every head: x [B, T, H, d] with the slice's T rows -> contiguous [B, T, H, d], computed in fp32 at least.
at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& positions);
/// The same through complex multiplication of composite operations.
at::Tensor rotate_reference(const at::Tensor& x, const RotaryTable::Slice& positions);

}  // namespace mythos
