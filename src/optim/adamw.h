// Decoupled AdamW (Loshchilov and Hutter, 2019) on flat buffers: one fused call per unit.
#pragma once

#include "model/parameters.h"

namespace mythos {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_vectors = true;  ///< false: norms and other vectors are exempt from decay
};

/// Euclidean norm of all gradients, summed in fp64 over blocks of fixed order.
double gradient_norm(const ParameterStore& store);

class AdamW {
 public:
  AdamW(ParameterStore& store, AdamWOptions options);

  /// One update with gradients divided by `gradient_divisor` (clipping). Afterwards the store's compute leaves are
  /// fresh.
  void step(double lr, double gradient_divisor);

  /// Updates done so far: what bias correction counts.
  [[nodiscard]] int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// As before the first step: moments of zero.
  void reset();
  /// First and second moments under the parameters' names, as views.
  [[nodiscard]] std::vector<NamedTensor> named_first_moments() const { return store_.named(first_); }
  [[nodiscard]] std::vector<NamedTensor> named_second_moments() const { return store_.named(second_); }

 private:
  ParameterStore& store_;
  AdamWOptions options_;
  std::vector<at::Tensor> first_, second_;
  int64_t steps_ = 0;
};

}  // namespace mythos
