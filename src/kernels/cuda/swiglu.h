// SwiGLU for the device: what kernels/swiglu.h promises. Raw memory here, tensors in swiglu.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// act = silu(gate) * up.
struct SwigluArgs {
  Type type = Type::f32;
  int64_t rows = 0, width = 0;   ///< width: of the gate, of up and of act
  const void* joined = nullptr;  ///< [rows, gate | up]
  void* act = nullptr;           ///< [rows, width]
};

/// With y = silu(gate) * up and dy the gradient of scale * y.
struct SwigluBackwardArgs {
  Type type = Type::f32;
  int64_t rows = 0, width = 0;
  const void* joined = nullptr;
  const void* dy = nullptr;     ///< [rows, width]
  const void* scale = nullptr;  ///< [rows] in fp32 at least, or null: all ones
  void* act = nullptr;          ///< scale * y, [rows, width]
  void* djoined = nullptr;      ///< [rows, 2 width]
  void* dscale = nullptr;       ///< [rows] in fp32 at least, or null
};

MYTHOS_ENTRY(swiglu_forward, SwigluArgs)
MYTHOS_ENTRY(swiglu_backward, SwigluBackwardArgs)

}  // namespace mythos::cuda
