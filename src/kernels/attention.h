// Causal attention, and the assembly of multi-head latent attention's heads (DeepSeek-V2, 2024).
#pragma once

#include "kernels/rotary.h"

namespace mythos {

/// Sizes of one MLA head.
struct MlaHeads {
  int64_t heads = 0;
  int64_t nope = 0;   ///< part of q and k without positions
  int64_t rope = 0;   ///< rotated part
  int64_t value = 0;  ///< width of v
};

struct Heads {
  at::Tensor q;  ///< [B, T, H, nope + rope]
  at::Tensor k;  ///< [B, S, H, nope + rope]
  at::Tensor v;  ///< [B, S, H, max(value, nope + rope)], zero beyond `value`: one head width for the flash kernels
};

/// Writes q, k and v once, in the layout attention reads.
/// q_up: [B, T, H*nope | H*rope], not rotated; kv: [B, S, H*(nope | value)]; k_rope: [B, S, rope], rotated, shared by
/// the heads.
Heads mla_heads(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                const RotaryTable::Slice& positions, const MlaHeads& sizes);
/// The same from composite operations (cat, expand, pad).
Heads mla_heads_reference(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                          const RotaryTable::Slice& positions, const MlaHeads& sizes);

/// softmax(q k^T / sqrt(width of q)) v with query i at absolute position S - T + i seeing keys 0 .. S - T + i:
/// right-aligned, so one query over a longer cache sees all of it. q: [B, T, H, d]; k: [B, S, Hkv, d]; v: [B, S, Hkv,
/// dv]; query head i uses kv head i / (H / Hkv). Returns [B, T, H, dv].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
/// The same with explicit scores.
at::Tensor causal_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace mythos
