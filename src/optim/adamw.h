// Decoupled AdamW (Loshchilov and Hutter, 2019) on flat buffers: one fused call per unit.
#pragma once

#include "model/parameters.h"

#include <cstdint>
#include <vector>

namespace mythos {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_vectors = true;  ///< false: norms and other vectors are exempt from decay
};

/// The sum of squares of the gradients that this process updates, in fp64 over blocks of fixed order.
double squared_gradient_norm(const ParameterStore& store);
/// Euclidean norm of all gradients, where they are all here.
double gradient_norm(const ParameterStore& store);

/// What gradients are divided by: 1, or what takes their norm to `clip` where they are longer; 0: never. As the
/// reference clips: gradients times min(1, clip / (norm + 1e-6)).
double gradient_divisor(double norm, double clip);

class AdamW {
 public:
  AdamW(ParameterStore& store, AdamWOptions options);

  /// One update of what this process updates, with gradients divided by `gradient_divisor` (clipping). Afterwards the
  /// store's compute leaves are fresh as far as they are here.
  void step(double lr, double gradient_divisor);

  struct Clipped {
    double loss = 0;
    double norm = 0;       ///< of the gradients, before clipping
    bool updated = false;  ///< false: loss or norm is not finite, and nothing was touched
  };
  /// The same where all gradients are here, clipped to `clip` (0: never), if they and `loss`, an fp64 scalar on the
  /// store's device, are finite. A device is waited for once, at the end.
  Clipped clipped_step(double lr, double clip, const at::Tensor& loss);

  /// Updates done so far: what bias correction counts.
  [[nodiscard]] int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// By how many updates each parameter, in the layout's order, is behind steps(): its own count is what its bias
  /// correction goes by. Another program's optimizer may have left out parameters without a gradient. Empty: none is
  /// behind.
  void set_lags(std::vector<int64_t> lags);
  [[nodiscard]] const std::vector<int64_t>& lags() const { return lags_; }
  /// Sets a parameter's moments, by its number in the layout, as far as they are kept here.
  void set_moments(size_t parameter, const at::Tensor& first, const at::Tensor& second);
  /// As before the first step: moments of zero.
  void reset();
  /// First and second moments under the parameters' names, as views; where they are all here.
  [[nodiscard]] std::vector<NamedTensor> named_first_moments() const { return named(first_); }
  [[nodiscard]] std::vector<NamedTensor> named_second_moments() const { return named(second_); }
  /// Those of what this process updates, by unit.
  [[nodiscard]] const std::vector<at::Tensor>& first_moments() const { return first_; }
  [[nodiscard]] const std::vector<at::Tensor>& second_moments() const { return second_; }

 private:
  // A part of a unit's buffer, counted from where this process's own begins, that is updated alike.
  struct Range {
    int64_t begin = 0, end = 0;
    double decay = 0;
    int64_t lag = 0;
  };
  void set_ranges();
  void update(double lr, double gradient_divisor, const at::Tensor& verdict);
  void update_on_device(size_t unit, double lr, double gradient_divisor, const at::Tensor& verdict);
  [[nodiscard]] std::vector<NamedTensor> named(const std::vector<at::Tensor>& flat) const;

  ParameterStore& store_;
  AdamWOptions options_;
  std::vector<at::Tensor> first_, second_;
  std::vector<std::vector<Range>> ranges_;  // by unit
  std::vector<int64_t> lags_;
  int64_t steps_ = 0;
};

}  // namespace mythos
