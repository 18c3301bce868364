// The fused ops of the device over tensors, with gradients: what the ops of kernels/ call where applies() holds. Shapes
// and meaning are those of the ops' own headers.
#pragma once

#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "kernels/weight.h"

#include <utility>

namespace mythos::cuda {

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight);
std::pair<at::Tensor, at::Tensor> residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight);
at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& weight);

at::Tensor swiglu_forward(const at::Tensor& joined);
SwigluBackward swiglu_backward(const at::Tensor& joined, const at::Tensor& dy, const at::Tensor& scale);

at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& positions);
/// Whether the two below take these: q [B, T, ..], k [B, S, ..] with T = S.
bool attention_applies(const at::Tensor& q, const at::Tensor& k);
at::Tensor mla_attention(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                         const RotaryTable::Slice& positions, const MlaHeads& sizes);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace mythos::cuda
