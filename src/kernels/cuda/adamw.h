// Clipping and AdamW without a word from the host in between, for the device. Raw memory here, tensors in adamw.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// What the device knows of a step: all that its update asks for, and that the host reads when it is done.
struct Verdict {
  double loss = 0;
  double norm = 0;     ///< of the gradients
  double divisor = 1;  ///< of the gradients
  double updates = 1;  ///< 0: loss or norm is not finite, and nothing is touched
};

/// From the parts of the squared norm, the loss, and the norm above which gradients are scaled down (0: never).
struct VerdictArgs {
  int64_t parts = 0;
  const double* squares = nullptr;  ///< [parts]
  const double* loss = nullptr;
  double clip = 0;
  Verdict* verdict = nullptr;
};

/// One update of a flat range.
struct AdamWArgs {
  Type type = Type::f32;  ///< f32 or f64
  int64_t count = 0;
  void* value = nullptr;
  const void* gradient = nullptr;
  void *first = nullptr, *second = nullptr;  ///< moments
  void* copy = nullptr;                      ///< bf16: the new values, or null
  double beta1 = 0, beta2 = 0, eps = 0;
  double keep = 1;         ///< 1 - lr * decay
  double rate = 0;         ///< lr over the first moment's bias correction
  double correction2 = 1;  ///< root of the second moment's
  double divisor = 1;      ///< of the gradients, where there is no verdict
  const Verdict* verdict = nullptr;
};

MYTHOS_ENTRY(judge_step, VerdictArgs)
MYTHOS_ENTRY(adamw_update, AdamWArgs)

}  // namespace mythos::cuda
