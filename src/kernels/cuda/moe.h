// Routing and the way of rows to their experts and back, for the device: what moe.h promises. No step of it waits for
// the device, adds atomically, or depends on timing. Raw memory here, tensors in moe.cpp.
#pragma once

#include "kernels/cuda/entry.h"

namespace mythos::cuda {

/// The top K of logits + bias, and softmax(logits) over them.
struct RouteArgs {
  Type type = Type::f32;  ///< of the logits and the weights: f32 or f64
  int64_t tokens = 0, experts = 0, chosen = 0;
  const void* logits = nullptr;  ///< [tokens, experts]
  const void* bias = nullptr;    ///< [experts], or null
  int64_t* choice = nullptr;     ///< [tokens, chosen], by falling biased logit; of equal ones the first
  void* weights = nullptr;       ///< [tokens, chosen]
};
struct RouteBackwardArgs {
  RouteArgs forward;  ///< of it the sizes, choice and weights
  const void* dweights = nullptr;
  void* dlogits = nullptr;  ///< written
};

/// Puts choices in the order of experts, those of one expert as they come: choice `i` of token i / chosen is row
/// slot[i] of the grouped order, and order[slot[i]] = i. Rows of expert e are those from ends[e - 1] to ends[e].
struct GroupArgs {
  int64_t choices = 0, experts = 0;
  const int64_t* choice = nullptr;  ///< [choices]
  int32_t* counts = nullptr;        ///< [group_chunks(choices), experts], for the op itself
  int32_t* ends = nullptr;          ///< [experts]
  int32_t* order = nullptr;         ///< [choices]
  int32_t* slot = nullptr;          ///< [choices]
};
inline constexpr int64_t group_chunk = 256;
inline int64_t group_chunks(int64_t choices) { return (choices + group_chunk - 1) / group_chunk; }

/// out[s] = in[order[s] / chosen].
struct GatherArgs {
  Type type = Type::f32;
  int64_t rows = 0, width = 0, chosen = 1;
  const void* in = nullptr;
  const int32_t* order = nullptr;
  void* out = nullptr;
};

/// out[n] = first[n] + second[n] + sum over j of weights[n, j] * rows[slot[n * chosen + j]], added in this order in
/// fp32 at least.
struct CombineArgs {
  Type type = Type::f32;
  int64_t tokens = 0, width = 0, chosen = 0;
  const void* rows = nullptr;
  const int32_t* slot = nullptr;
  const void* weights = nullptr;  ///< [tokens, chosen] in fp32 at least, or null: ones
  const void* first = nullptr;    ///< [tokens, width], or null
  const void* second = nullptr;
  void* out = nullptr;
};

MYTHOS_ENTRY(route_forward, RouteArgs)
MYTHOS_ENTRY(route_backward, RouteBackwardArgs)
MYTHOS_ENTRY(group_choices, GroupArgs)
MYTHOS_ENTRY(gather_rows, GatherArgs)
MYTHOS_ENTRY(combine_rows, CombineArgs)

}  // namespace mythos::cuda
