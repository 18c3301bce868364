// Rotary positions and the heads of multi-head latent attention, for the device: what kernels/rotary.h and
// kernels/attention.h promise. Raw memory here, tensors in heads.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// A tensor [B, T, H, d] or [B, T, width] with dense last dimensions.
struct Strided {
  const void* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;  ///< numbers from one to the next
};

struct RotateArgs {
  Type type = Type::f32;
  int64_t batch = 0, count = 0, heads = 0, width = 0;  ///< of [B, T, H, d]
  Strided x;
  const float* cos = nullptr;  ///< [T, d/2]
  const float* sin = nullptr;
  bool back = false;  ///< by the opposite angle
  void* out = nullptr;
};

/// From what the projections give to what attention takes; memory of q, k and v is [B, T, H, width].
struct HeadsArgs {
  Type type = Type::f32;
  int64_t batch = 0, count = 0;
  int64_t heads = 0, nope = 0, rope = 0, value = 0;
  const float* cos = nullptr;  ///< [T, rope/2]
  const float* sin = nullptr;
  Strided q_up;                            ///< [B, T, H*nope | H*rope], not rotated
  Strided kv;                              ///< [B, T, H*(nope | value)]
  Strided k_rope;                          ///< [B, T, rope], rotated
  int64_t key_width = 0, value_width = 0;  ///< of q and k, of v: at least nope + rope, value; zeros behind
  void *q = nullptr, *k = nullptr, *v = nullptr;
};

/// The way back: gradients of q, k and v may have wider rows, what is behind is not looked at.
struct HeadsBackwardArgs {
  Type type = Type::f32;
  int64_t batch = 0, count = 0;
  int64_t heads = 0, nope = 0, rope = 0, value = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  Strided dq, dk, dv;
  void *dq_up = nullptr, *dkv = nullptr;  ///< without gaps
  void* dk_rope = nullptr;                ///< [B, T, rope]: over the heads, added in their order
};

MYTHOS_ENTRY(rotate, RotateArgs)
MYTHOS_ENTRY(heads_forward, HeadsArgs)
MYTHOS_ENTRY(heads_backward, HeadsBackwardArgs)

}  // namespace mythos::cuda
