// The fused ops of the device over tensors, with gradients: what the ops of kernels/ call where applies() holds. Shapes
// and meaning are those of the ops' own headers.
#pragma once

#include "kernels/weight.h"

#include <utility>

namespace mythos::cuda {

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight);
std::pair<at::Tensor, at::Tensor> residual_norm(const at::Tensor& x, const at::Tensor& added, const Weight& weight);
at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& weight);

}  // namespace mythos::cuda
