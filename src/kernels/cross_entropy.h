// The LM head and cross-entropy as one chunked op: the logits of the whole batch never exist at once.
#pragma once

#include "kernels/weight.h"

namespace mythos {

inline constexpr int64_t ignored_target = -100;

/// Sum over positions of the cross-entropy of `hidden @ weight^T` against `targets`, divided by `denominator`: the mean
/// where that is the number of counted targets of the whole global batch, whatever the split into micro-batches.
/// hidden: [N, D], weight: [V, D], targets: int64 [N] in [0, V) or ignored_target. Returns a scalar in fp32 at least.
/// Throws c10::IndexError for other targets on the CPU, before anything is written; elsewhere the loss is NaN then.
/// Gradients are computed in the same pass, chunk by chunk (`chunk_rows` positions at a time, 0: a fitting number).
/// Where weight.grad is defined it is added to in the *forward* pass, so the loss must then be backpropagated with
/// gradient 1.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& targets,
                                double denominator, int64_t chunk_rows = 0);

/// The same with all logits at once, from composite ATen operations.
at::Tensor linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                          double denominator);

/// Positions whose logits the op holds at a time, of `tokens` in all: equal chunks of at most 208 MB of fp32, 64 to
/// 1,024 positions (with fewer all weights are read more often; with more the matrix products gain nothing). On other
/// devices at most 1.25 GB of logits of `element` bytes, and at least 64 positions.
int64_t cross_entropy_chunk_rows(int64_t vocabulary, int64_t tokens, at::DeviceType device = at::kCPU,
                                 int64_t element = 4);

/// Vocabulary entries of one matrix product on the CPU, at most 1,024: a block's logits are still in the cache when
/// their softmax is taken, and products with a few thousand rows more are slower, some by half.
int64_t cross_entropy_block(int64_t vocabulary);

}  // namespace mythos
