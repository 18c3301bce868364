// Softmax and its loss on rows of logits, for the device: what cross_entropy.h promises. Raw memory here, tensors in
// cross_entropy.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// losses[r] = log(sum over i of exp(logits[r][i])) - logits[r][targets[r]]: 0 where the target is `ignored`, and NaN
/// where it is no class. With `gradients`, logits[r][i] = (softmax - [i is the target]) * scale then, 0 in rows of both
/// kinds. Rows without gaps, whatever that means for their alignment.
struct CrossEntropyArgs {
  Type type = Type::f32;
  int64_t rows = 0, classes = 0;
  void* logits = nullptr;  ///< [rows, classes]
  const int64_t* targets = nullptr;
  int64_t ignored = 0;
  double scale = 1;
  bool gradients = false;
  double* losses = nullptr;  ///< [rows], written
};

MYTHOS_ENTRY(cross_entropy, CrossEntropyArgs)

}  // namespace mythos::cuda
