// The heads of multi-head latent attention as tensors, outside autograd.
#pragma once

#include "kernels/attention.h"

#include <array>

namespace mythos::cuda {

/// What mla_attention() of kernels/attention.h gets, with as many queries as keys.
struct MlaProjections {
  at::Tensor q_up, kv, k_rope;
  RotaryTable::Slice positions;
  MlaHeads sizes;
};

/// Each [B, T, H, width], of which attention takes the transposed view.
struct QueriesKeysValues {
  at::Tensor q, k, v;
};

/// Queries and keys of nope + rope numbers and values, each row with zeros up to the widths asked for.
QueriesKeysValues assemble(const MlaProjections& in, int64_t key_width, int64_t value_width);
/// Gradients of q_up, kv and k_rope; those it gets may have wider rows.
std::array<at::Tensor, 3> assemble_backward(const QueriesKeysValues& grads, const RotaryTable::Slice& positions,
                                            const MlaHeads& sizes);

}  // namespace mythos::cuda
