#include "optim/router_balance.h"

#include <ATen/ATen.h>

namespace mythos {

RouterBalance::RouterBalance(at::Tensor bias, double speed) : bias_(std::move(bias)), speed_(speed) {
  if (on()) chosen_ = at::zeros({bias_.numel()}, bias_.options().dtype(at::kLong));
}

void RouterBalance::begin() {
  if (on()) chosen_.zero_();
}

void RouterBalance::count(const at::Tensor& experts) {
  if (!on()) return;
  const at::Tensor flat = experts.reshape({-1});
  chosen_.scatter_add_(0, flat, at::ones_like(flat));
}

void RouterBalance::update() {
  if (!on()) return;
  const at::NoGradGuard no_grad;
  // Against the mean in whole numbers: the same on every rank and every device.
  const at::Tensor below = chosen_.sum() - chosen_ * chosen_.numel();
  bias_.add_(below.sign().to(bias_.scalar_type()), speed_);
}

}  // namespace mythos
