// Running a block again in the backward pass instead of keeping what it computed (Chen et al., 2016).
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace mythos {

/// What is kept for the backward pass.
enum class Recompute {
  none,  ///< everything the ops ask for
  loop,  ///< the input of each block and the state h of each loop; the blocks are run again in backward
};

/// A block of two inputs; the second may be ignored.
using RecomputedBody = std::function<std::vector<at::Tensor>(const at::Tensor& h, const at::Tensor& e)>;

/// body(h, e), of which only h and e are kept: the backward pass runs the body once more with gradients on. Weights are
/// reached inside and add to their own gradient buffers, so shared weights cost nothing extra however many loops there
/// are. At least one of h and e must require a gradient.
std::vector<at::Tensor> recomputed(const at::Tensor& h, const at::Tensor& e, RecomputedBody body);

}  // namespace mythos
