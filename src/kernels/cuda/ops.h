// The fused ops of the device over tensors, with gradients: what the ops of kernels/ call where applies() holds. Shapes
// and meaning are those of the ops' own headers.
#pragma once

#include "kernels/attention.h"
#include "kernels/loop.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "kernels/weight.h"

#include <utility>
#include <vector>

namespace mythos::cuda {

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight);
std::pair<at::Tensor, at::Tensor> residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight);
at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& weight);
LoopStep loop_update(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                     const at::Tensor& out, HaltingState& halting, const LoopWeights& weights, double threshold);

/// logits in fp32 at least; the experts and their weights.
std::pair<at::Tensor, at::Tensor> route(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k);
at::Tensor routed_experts(const at::Tensor& x, const Weight& gate_up, const Weight& down, const at::Tensor& experts,
                          const at::Tensor& weights, const std::vector<at::Tensor>& addends);

/// Rows of logits to losses and, in the same memory, to gradients: see cuda/cross_entropy.h. logits: [rows, V] without
/// gaps; targets: int64 [rows]; losses: fp64 [rows], written.
void cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& losses, double scale,
                   bool gradients);
/// Adds the rows of dy [N, D] to the rows `ids` [N] of the sink [.., D], which is of dy's type or fp32.
void embedding_gradient(const at::Tensor& ids, const at::Tensor& dy, const at::Tensor& sink);
/// The sum of fp64 numbers, a scalar: the same for every GPU.
at::Tensor sum_in_order(const at::Tensor& numbers);
/// Parts, in fp64, whose sum is that of the squares of all these flat buffers (at least one, in fp32 or fp64).
at::Tensor sum_of_squares(const std::vector<at::Tensor>& flat);

/// What a step's update follows from, decided on the device: fp64 [4], a Verdict of cuda/adamw.h. loss: an fp64 scalar.
at::Tensor judge_step(const at::Tensor& squares, const at::Tensor& loss, double clip);
/// Flat tensors of one length, all but the copy of one type, fp32 or fp64.
struct AdamWRange {
  at::Tensor value, gradient, first, second;
  at::Tensor copy;  // bf16, written with the new values of fp32; may be undefined
};
struct AdamWNumbers {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0;
  double step = 1;     // this update's number, from 1
  double divisor = 1;  // of the gradients, where there is no verdict
};
/// One update of a range, or none, as the verdict says where there is one.
void adamw_update(const AdamWRange& range, const AdamWNumbers& numbers, const at::Tensor& verdict);

at::Tensor swiglu_forward(const at::Tensor& joined);
SwigluBackward swiglu_backward(const at::Tensor& joined, const at::Tensor& dy, const at::Tensor& scale);

at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& positions);
/// Whether the two below take these: q [B, T, ..], k [B, S, ..] with T = S.
bool attention_applies(const at::Tensor& q, const at::Tensor& k);
at::Tensor mla_attention(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                         const RotaryTable::Slice& positions, const MlaHeads& sizes);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace mythos::cuda
