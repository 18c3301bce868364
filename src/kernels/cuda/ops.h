// The fused ops of the device over tensors, with gradients: what the ops of kernels/ call where applies() holds. Shapes
// and meaning are those of the ops' own headers.
#pragma once

#include "kernels/loop.h"
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

}  // namespace mythos::cuda
