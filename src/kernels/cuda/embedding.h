// The gradient of a table whose rows were looked up, for the device. Raw memory here, tensors in embedding.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// out[id] += the sum of dy[order[i]] over the i with ids[i] == id, in the order of i and in fp32 at least; a row of
/// out is touched by one team alone.
struct EmbeddingArgs {
  Type type = Type::f32;      ///< of dy
  Type out_type = Type::f32;  ///< the same, or f32 for bf16
  int64_t count = 0, width = 0;
  const int64_t* ids = nullptr;    ///< [count], ascending
  const int64_t* order = nullptr;  ///< [count]
  const void* dy = nullptr;        ///< [count, width]
  void* out = nullptr;             ///< [.., width]
};

MYTHOS_ENTRY(embedding_gradient, EmbeddingArgs)

}  // namespace mythos::cuda
