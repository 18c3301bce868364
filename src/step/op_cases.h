// The ops that step/op_speed.h measures, each with inputs of a model's shapes.
#pragma once

#include "kernels/part.h"
#include "step/op_speed.h"

#include <ATen/ATen.h>

#include <optional>

namespace mythos {

using OpForm = std::function<std::vector<at::Tensor>()>;

struct OpCase {
  std::string shape;
  OpForm ours, composite;
  std::vector<at::Tensor> inputs;  ///< want gradients; those of weights are added to their buffers
  bool differentiable = true;      ///< false: there is no backward pass
  std::optional<Part> part;        ///< whose matrix products limit it; none: memory
  double forward_work = 0, both_work = 0;
};

/// The case of an op of op_names(). Its tensors live as long as it does.
OpCase op_case(const std::string& name, const OpSpeedOptions& options);

}  // namespace mythos
