// Mixture of experts (DeepSeekMoE, Dai et al., 2024): routing, and the routed SwiGLU experts as grouped GEMMs.
#pragma once

#include "kernels/weight.h"

#include <vector>

namespace mythos {

struct Routing {
  at::Tensor experts;  ///< int64 [N, K], by falling biased logit
  at::Tensor weights;  ///< [N, K] in fp32 at least, rows sum to 1
};

/// The top K of logits + bias, weighted by softmax(logits) renormalised over the chosen: the bias chooses, it never
/// weighs. logits: [N, E]; bias: [E] or undefined.
Routing route(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k);

/// sum_k weights[n, k] * down[e](swiglu(gate_up[e](x[n]))) with e = experts[n, k], plus the addends.
/// x: [N, D]; gate_up: [E, 2F, D]; down: [E, D, F]; experts: int64 [N, K]; weights: [N, K]; addends: [N, D] each.
/// Returns [N, D]. Experts nobody chose cost nothing and get a zero gradient.
at::Tensor routed_experts(const at::Tensor& x, const Weight& gate_up, const Weight& down, const at::Tensor& experts,
                          const at::Tensor& weights, const std::vector<at::Tensor>& addends = {});
/// The same, one expert and one choice at a time with masks, as the reference does.
at::Tensor routed_experts_reference(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                                    const at::Tensor& experts, const at::Tensor& weights);

}  // namespace mythos
