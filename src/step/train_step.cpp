#include "step/train_step.h"

#include "kernels/part.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace mythos {

TrainStep::TrainStep(Model& model, AdamW& optimizer, Sharding* sharding, double router_bias_speed)
    : model_(model),
      optimizer_(optimizer),
      sharding_(sharding),
      balance_(model.router_bias(), router_bias_speed),
      count_experts_([this](const LoopReport& r) {
        balance_.count(r.experts);
        if (options_.observer != nullptr) (*options_.observer)(r);
      }) {
  if (sharding_ != nullptr) sharding_->attach(model_.parameters());
}

void TrainStep::begin(const StepOptions& options) {
  options_ = options;
  loss_ = at::zeros({}, at::TensorOptions(model_.parameters().device()).dtype(at::kDouble));
  micro_steps_ = 0;
  balance_.begin();
  if (sharding_ != nullptr) return sharding_->begin_step();
  model_.parameters().zero_gradients();
}

void TrainStep::micro_step(const at::Tensor& ids, const at::Tensor& targets) {
  const at::AutoGradMode on(true);
  const at::Device device = model_.parameters().device();
  ForwardOptions forward;
  forward.n_loops = options_.n_loops;
  forward.recompute = options_.recompute;
  forward.observer = balance_.on() ? &count_experts_ : options_.observer;
  forward.hooks = sharding_;
  if (sharding_ != nullptr) sharding_->begin_micro_step(++micro_steps_ == options_.micro_steps);
  const at::Tensor loss = model_.loss(ids.to(device), targets.to(device), options_.loss_tokens, forward);
  torch::autograd::backward({loss}, {});
  if (sharding_ != nullptr) {
    sharding_->end_micro_step();
  } else {
    model_.parameters().flush_gradients();
  }
  loss_.add_(loss.detach().to(at::kDouble));
}

StepResult TrainStep::finish(double lr) {
  StepResult result;
  if (sharding_ == nullptr) {
    const AdamW::Clipped step = optimizer_.clipped_step(lr, options_.clip, loss_);
    result.loss = step.loss;
    result.gradient_norm = step.norm;
    result.updated = step.updated;
    if (result.updated) balance_.update();
    return result;
  }
  {
    const PartScope scope(Part::waiting);  // a GPU ends its work here
    result.loss = loss_.item<double>();
  }
  TORCH_CHECK(micro_steps_ == options_.micro_steps, micro_steps_, " of ", options_.micro_steps, " micro-steps");
  {
    const PartScope scope(Part::waiting);
    sharding_->reduce();
  }
  const auto totals = sharding_->totals(result.loss, squared_gradient_norm(model_.parameters()));
  result.loss = totals.loss;
  result.gradient_norm = totals.norm;
  result.first_bad_rank = totals.first_bad;
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) return result;
  optimizer_.step(lr, gradient_divisor(result.gradient_norm, options_.clip));
  sharding_->publish();
  if (balance_.on()) {
    Handle sum = sharding_->world().all_reduce(balance_.chosen());
    wait(sum);
  }
  balance_.update();
  result.updated = true;
  return result;
}

}  // namespace mythos
