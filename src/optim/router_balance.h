// Keeping experts equally busy without a loss of its own: after each step the router's bias of an expert goes up a
// little where it was chosen less often than the mean, and down where more often. The bias decides who is chosen and
// never weighs anything (Wang et al., 2024, https://arxiv.org/abs/2408.15664).
#pragma once

#include <ATen/core/Tensor.h>

namespace mythos {

class RouterBalance {
 public:
  /// `bias`: floating point [n_experts], changed in place by `speed` or not at all. Speed 0: everything below does
  /// nothing.
  RouterBalance(at::Tensor bias, double speed);

  [[nodiscard]] bool on() const { return speed_ > 0; }
  /// Forgets what was counted.
  void begin();
  /// Counts choices: int64 of any shape, on the bias's device. Nobody waits for the device.
  void count(const at::Tensor& experts);
  /// Choices of each expert since begin(), int64 [n_experts]; of several ranks to be summed before update().
  [[nodiscard]] const at::Tensor& chosen() const { return chosen_; }
  void update();

 private:
  at::Tensor bias_, chosen_;
  double speed_;
};

}  // namespace mythos
