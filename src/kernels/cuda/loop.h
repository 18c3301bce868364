// The end of one run of the looped block, for the device: the injection, the LoRA's last product, the halting step and
// the weighted sum of states in one pass. What loop.h promises. Raw memory here, tensors in loop.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// With A = exp(-exp(clamp(log_dt + log_a))):
///   state = A h + B e + u + low lora, rounded to the type;
///   p = sigmoid(halt . state + bias); weight = p, or max(0, 1 - cumulative) where cumulative + p >= threshold, or 0
///   where halted; sum_out = sum + weight state; cumulative_out, halted_out likewise.
/// Rows of `width` numbers, `rank` of low. What is in "fp32 at least" is fp64 for an fp64 model.
struct LoopUpdateArgs {
  Type type = Type::f32;
  int64_t rows = 0, width = 0, rank = 0;
  const void *h = nullptr, *e = nullptr, *u = nullptr;         ///< [rows, width]
  const void* low = nullptr;                                   ///< [rows, rank]
  const void* lora = nullptr;                                  ///< [rank, width]
  const void *log_a = nullptr, *b = nullptr, *halt = nullptr;  ///< [width]
  const void *log_dt = nullptr, *bias = nullptr;               ///< [1]
  double threshold = 0, low_bound = 0, high_bound = 0;         ///< of halting; of the clamp
  const void* sum = nullptr;                                   ///< [rows, width], fp32 at least
  const void* cumulative = nullptr;                            ///< [rows], fp32 at least
  const bool* halted = nullptr;                                ///< [rows]
  void* state = nullptr;                                       ///< [rows, width]
  void* sum_out = nullptr;
  void *p = nullptr, *weight = nullptr, *cumulative_out = nullptr;  ///< [rows], fp32 at least
  bool* halted_out = nullptr;
};

/// From the gradients of state (may be null), sum_out and cumulative_out (may be null). That of sum_out is sum's too.
/// Each of `parts` teams writes sums over its rows to [parts, 3 width + 1]: of the gradients of A, B, halt and bias.
struct LoopUpdateBackwardArgs {
  LoopUpdateArgs forward;  ///< without u and the outputs, but with state, p and weight, which are read
  const void *dstate = nullptr, *dsum_out = nullptr, *dcumulative_out = nullptr;
  void *dh = nullptr, *de = nullptr, *du = nullptr;  ///< [rows, width]; du is the gradient of state as a whole
  void* dlow = nullptr;                              ///< [rows, rank]
  void* dcumulative = nullptr;                       ///< [rows]
  int64_t parts = 0;
  void* sums = nullptr;  ///< fp32 at least
};

MYTHOS_ENTRY(loop_update_forward, LoopUpdateArgs)
MYTHOS_ENTRY(loop_update_backward, LoopUpdateBackwardArgs)

}  // namespace mythos::cuda
