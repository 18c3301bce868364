// Multi-head latent attention on the latent itself (DeepSeek-V2, 2024, section 2.1: the up-projections absorbed), for a
// few queries over a long cache.
#pragma once

#include "kernels/attention.h"

namespace mythos {

/// mla_attention(q_up, latent kv_up^T, ...) without projecting the latent up: a score is (q_nope W_k) . latent, and the
/// values are summed as latents before they go through W_v. Equal to rounding. No gradient.
/// q_up: [B, T, H*nope | H*rope], not rotated; latent: [B, S, rank], normalised; kv_up: [H*(nope | value), rank], of
/// q_up's type, or bfloat16 with float; k_rope: [B, S, rope], rotated; query i is at position S - T + i.
/// Returns [B, T, H*value].
at::Tensor absorbed_attention(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& kv_up,
                              const at::Tensor& k_rope, const RotaryTable::Slice& positions, const MlaHeads& sizes);
/// The same from composite operations; what runs elsewhere than on the CPU.
at::Tensor absorbed_attention_reference(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& kv_up,
                                        const at::Tensor& k_rope, const RotaryTable::Slice& positions,
                                        const MlaHeads& sizes);

/// Whether so many queries are better off with the latent than with projecting it up. A key costs a query and head
/// 2 rank + rope multiplications instead of nope + rope + value, and is not projected for rank (nope + value).
bool absorbing_pays(int64_t queries, int64_t rank, const MlaHeads& sizes);

}  // namespace mythos
