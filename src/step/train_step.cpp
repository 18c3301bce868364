#include "step/train_step.h"

#include "kernels/part.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace mythos {

void TrainStep::begin(const StepOptions& options) {
  options_ = options;
  loss_ = at::zeros({}, at::TensorOptions(model_.parameters().device()).dtype(at::kDouble));
  model_.parameters().zero_gradients();
}

void TrainStep::micro_step(const at::Tensor& ids, const at::Tensor& targets) {
  const at::AutoGradMode on(true);
  const at::Device device = model_.parameters().device();
  ForwardOptions forward;
  forward.n_loops = options_.n_loops;
  forward.recompute = options_.recompute;
  forward.observer = options_.observer;
  const at::Tensor loss = model_.loss(ids.to(device), targets.to(device), options_.loss_tokens, forward);
  torch::autograd::backward({loss}, {});
  model_.parameters().flush_gradients();
  loss_.add_(loss.detach().to(at::kDouble));
}

StepResult TrainStep::finish(double lr) {
  StepResult result;
  {
    const PartScope scope(Part::waiting);  // a GPU ends its work here
    result.loss = loss_.item<double>();
  }
  result.gradient_norm = gradient_norm(model_.parameters());
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) return result;
  // The reference's clip: gradients times min(1, clip / (norm + 1e-6)).
  const double divisor = options_.clip > 0 ? std::max(1.0, (result.gradient_norm + 1e-6) / options_.clip) : 1.0;
  optimizer_.step(lr, divisor);
  result.updated = true;
  return result;
}

}  // namespace mythos
