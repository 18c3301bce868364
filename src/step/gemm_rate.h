// The limit of a training step: the rate of matrix multiplies in the model's own shapes.
#pragma once

#include "kernels/part.h"
#include "model/config.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mythos {

/// One matrix product of a training step, C[m, n] = A B, and the FLOPs of the step it stands for.
struct GemmShape {
  Part part = Part::projections;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  ///< A is stored [k, m], as in gradients of weights
  bool transpose_b = false;  ///< B is stored [n, k], as in y = x W^T
  bool accumulate = false;   ///< added to C, as gradients of weights are
  double flops = 0;          ///< per token
};

/// The products that hold the FLOPs of this model with `tokens` tokens in a micro-batch: forward, gradients of the
/// inputs and of the weights. Scores and values of attention are not among them. The head's depend on the device.
std::vector<GemmShape> gemm_shapes(const ModelConfig& config, int64_t tokens, int64_t loops,
                                   at::DeviceType device = at::kCPU);

/// Measures the matrix multiply on these shapes, LibTorch's and the one the fused ops take (kernels/product.h), the
/// faster of the two for each shape; in rounds, so that it can take turns with what it is the limit of.
class GemmRate {
 public:
  GemmRate(std::vector<GemmShape> shapes, at::Device device, at::ScalarType dtype);
  /// Runs every shape, each for a share of `seconds` by its FLOPs and at least once.
  void round(double seconds);
  /// FLOP/s over all shapes, FLOP-weighted: each shape at its best round's mean, or in the last round.
  [[nodiscard]] double best() const;
  [[nodiscard]] double last() const;
  [[nodiscard]] const std::vector<GemmShape>& shapes() const { return shapes_; }
  [[nodiscard]] const std::vector<double>& best_by_shape() const { return best_; }

 private:
  [[nodiscard]] double weighted(const std::vector<double>& rates) const;

  std::vector<GemmShape> shapes_;
  at::Device device_;
  at::ScalarType dtype_;
  std::vector<double> best_, last_;  // FLOP/s by shape
};

/// "AMD EPYC 7763 64-Core Processor" or the GPU's name.
std::string device_name(at::Device device);
/// "2.15.0"
std::string libtorch_version();

}  // namespace mythos
