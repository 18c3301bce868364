#include "step/train_step.h"

#include "kernels/part.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace mythos {

TrainStep::TrainStep(Model& model, AdamW& optimizer, Sharding* sharding, double router_bias_speed, Capture capture)
    : model_(model),
      optimizer_(optimizer),
      sharding_(sharding),
      balance_(model.router_bias(), router_bias_speed),
      count_experts_([this](const LoopReport& r) {
        balance_.count(r.experts);
        if (options_.observer != nullptr) (*options_.observer)(r);
      }),
      input_(model.parameters().device()),
      graph_(model.parameters().device(), capture == Capture::when_possible),
      loss_(at::zeros({}, at::TensorOptions(model.parameters().device()).dtype(at::kDouble))) {
  if (sharding_ != nullptr) sharding_->attach(model_.parameters());
}

void TrainStep::begin(const StepOptions& options) {
  options_ = options;
  loss_.zero_();
  micro_steps_ = 0;
  balance_.begin();
  if (sharding_ != nullptr) return sharding_->begin_step();
  model_.parameters().zero_gradients();
}

void TrainStep::micro_step(const at::Tensor& ids, const at::Tensor& targets) {
  ++micro_steps_;
  if (sharding_ != nullptr) sharding_->begin_micro_step(micro_steps_ == options_.micro_steps);
  const DeviceInput::Batch batch = input_.send(ids, targets);
  if (sharding_ != nullptr || !graph_.captures()) {  // ranks wait for each other
    graph_.run_once([&] { forward_and_backward(batch.ids, batch.targets); });
  } else {
    if (!ids_.defined() || ids_.sizes() != batch.ids.sizes()) {
      ids_ = at::empty_like(batch.ids);
      targets_ = at::empty_like(batch.targets);
    }
    ids_.copy_(batch.ids);
    targets_.copy_(batch.targets);
    const std::string name = fmt::format("{} {} {} {} {} {} {}", fmt::ptr(ids_.const_data_ptr()), ids_.size(0),
                                         ids_.size(1), options_.n_loops, static_cast<int>(options_.recompute),
                                         options_.loss_tokens, fmt::ptr(options_.observer));
    graph_.run(name, [&] { forward_and_backward(ids_, targets_); });
  }
  if (sharding_ != nullptr) sharding_->end_micro_step();
}

void TrainStep::forward_and_backward(const at::Tensor& ids, const at::Tensor& targets) {
  const at::AutoGradMode on(true);
  ForwardOptions forward;
  forward.n_loops = options_.n_loops;
  forward.recompute = options_.recompute;
  forward.observer = balance_.on() ? &count_experts_ : options_.observer;
  forward.hooks = sharding_;
  const at::Tensor loss = model_.loss(ids, targets, options_.loss_tokens, forward);
  torch::autograd::backward({loss}, {});
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
