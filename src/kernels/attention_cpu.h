// The CPU's own attention, float and double: kernels/cpu/attention.h over the heads of tensors, on all threads. The
// results are the same for any number of threads. Shapes as in kernels/attention.h, where they are checked.
#pragma once

#include <ATen/ATen.h>

#include <array>

namespace mythos::cpu {

struct Attended {
  at::Tensor out;
  at::Tensor lse;  ///< [B, H, T], log of each query's sum of exponentials; undefined unless asked for
};

/// q [B, T, H, d], k [B, S, Hkv, d], v [B, S, Hkv, dv] -> [B, T, H, dv].
Attended grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool with_lse);
/// Gradients by q, k and v.
std::array<at::Tensor, 3> grouped_attention_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     const Attended& forward, const at::Tensor& dout);

struct MlaInputs {
  at::Tensor q_up, kv, k_rope;
  at::Tensor cos, sin;  ///< [T, rope / 2] fp32
  int64_t heads, nope, rope, value;
};

/// -> [B, T, H*value].
Attended latent_attention(const MlaInputs& in, bool with_lse);
/// Gradients by q_up, kv and k_rope.
std::array<at::Tensor, 3> latent_attention_backward(const MlaInputs& in, const Attended& forward,
                                                    const at::Tensor& dout);

}  // namespace mythos::cpu
