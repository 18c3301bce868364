// RMSNorm of sums, for the device: what rms_norm.h and loop.h promise. Raw memory here, tensors in norm.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// s = x + added + signal, rounded to the type; y = s / sqrt(mean(s^2) + eps) * weight. Rows of `width` numbers, those
/// of all but x without gaps.
struct NormArgs {
  Type type = Type::f32;
  int64_t rows = 0, width = 0;
  int64_t x_stride = 0;  ///< from row to row of x
  const void* x = nullptr;
  const void* added = nullptr;   ///< [rows, width], or null
  const void* signal = nullptr;  ///< [width] in fp32 at least, or null
  const void* weight = nullptr;  ///< [width]
  double eps = 0;
  void* sum = nullptr;  ///< s, or null
  void* y = nullptr;
  void* rstd = nullptr;  ///< [rows] in fp32 at least
};

/// ds from dy, and dsum added to it where there is one. Each of `parts` teams adds its rows' gradient of the weight to
/// a row of its own.
struct NormBackwardArgs {
  NormArgs forward;  ///< without sum and y
  const void* dy = nullptr;
  const void* dsum = nullptr;  ///< [rows, width], or null
  void* dx = nullptr;          ///< may be dsum
  int64_t parts = 0;
  void* dweight = nullptr;  ///< [parts, width] in fp32 at least, written
};

/// out[i] += sum over parts of rows[part][i], in the order of the parts, or = where `overwrite`.
struct AddPartsArgs {
  Type type = Type::f32;  ///< of the parts: f32 or f64
  Type out_type = Type::f32;
  int64_t parts = 0, width = 0;
  const void* rows = nullptr;
  void* out = nullptr;
  bool overwrite = false;
};

MYTHOS_ENTRY(norm_forward, NormArgs)
MYTHOS_ENTRY(norm_backward, NormBackwardArgs)
MYTHOS_ENTRY(add_parts, AddPartsArgs)

}  // namespace mythos::cuda
