// Causal attention, with grouped queries and in the form of multi-head latent attention (DeepSeek-V2, 2024). On the CPU
// in float and double it is our own (kernels/attention_cpu.h), elsewhere LibTorch's.
#pragma once

#include "kernels/rotary.h"
#include "kernels/weight.h"

namespace mythos {

/// Sizes of one MLA head.
struct MlaHeads {
  int64_t heads = 0;
  int64_t nope = 0;   ///< part of q and k without positions
  int64_t rope = 0;   ///< rotated part
  int64_t value = 0;  ///< width of v
};

/// Causal attention over MLA's heads, from the projections as they are. q_up: [B, T, H*nope | H*rope], not rotated;
/// kv: [B, S, H*(nope | value)]; k_rope: [B, S, rope], rotated, shared by the heads; T and S as in causal_attention().
/// Returns [B, T, H*value], contiguous. On the CPU no heads are assembled in memory, and a backward pass keeps nothing
/// but the inputs, the output and one number per query and head.
at::Tensor mla_attention(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                         const RotaryTable::Slice& positions, const MlaHeads& sizes);
/// The same from composite operations, with explicit scores.
at::Tensor mla_attention_reference(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                                   const RotaryTable::Slice& positions, const MlaHeads& sizes);

/// mla_attention() of the projections q_up(query) and kv_up(latent). query: [B, T, q_rank]; latent: [B, S, kv_rank].
/// On the CPU a backward pass keeps the two inputs and projects them again: the projections are the largest tensors of
/// the block and among its cheapest products.
at::Tensor mla_projected_attention(const at::Tensor& query, const Weight& q_up, const at::Tensor& latent,
                                   const Weight& kv_up, const at::Tensor& k_rope, const RotaryTable::Slice& positions,
                                   const MlaHeads& sizes);

/// softmax(q k^T / sqrt(width of q)) v with query i at absolute position S - T + i seeing keys 0 .. S - T + i:
/// right-aligned, so one query over a longer cache sees all of it. q: [B, T, H, d]; k: [B, S, Hkv, d]; v: [B, S, Hkv,
/// dv]; query head i uses kv head i / (H / Hkv). Returns [B, T, H, dv].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
/// The same with explicit scores.
at::Tensor causal_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace mythos
