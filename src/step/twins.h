// Every fused op against its twin from composite operations: the same outputs and the same gradients, on random inputs
// of awkward sizes. What the tests and scripts/gpu_check ask of a device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mythos {

/// Random tensors of one type on one device, drawn on the CPU: the same for a seed.
class TwinDraw {
 public:
  TwinDraw(at::Device device, at::ScalarType type, uint64_t seed);
  [[nodiscard]] at::ScalarType type() const { return type_; }
  [[nodiscard]] at::ScalarType wide() const { return type_ == at::kDouble ? at::kDouble : at::kFloat; }
  [[nodiscard]] at::Device device() const { return device_; }
  at::Tensor normal(at::IntArrayRef shape, double scale = 1);
  at::Tensor normal_wide(at::IntArrayRef shape, double scale = 1);  ///< in wide()
  at::Tensor below(int64_t bound, at::IntArrayRef shape);           ///< int64

 private:
  at::Device device_;
  at::ScalarType type_;
  at::Generator generator_;
};

using TwinForm = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// One op at one size.
struct Twin {
  std::string size;  ///< for people
  TwinForm fused, composite;
  std::vector<at::Tensor> inputs;  ///< of a floating type, all differentiable
  double slack = 1;  ///< by how much gradients that are long sums may exceed the rounding of single numbers
};

/// All sizes of one op.
struct TwinOp {
  std::string name;
  std::function<std::vector<Twin>(TwinDraw&)> make;
};
const std::vector<TwinOp>& twin_ops();

struct TwinResult {
  std::string op, size;
  double forward = 0;   ///< largest difference of an output, over the output's largest magnitude
  double backward = 0;  ///< the same of the gradients
  double tolerance = 0, backward_tolerance = 0;
  std::string error;  ///< what was thrown, or empty
  [[nodiscard]] bool ok() const { return error.empty() && forward <= tolerance && backward <= backward_tolerance; }
};

/// The twins of ops whose name contains `filter`.
std::vector<TwinResult> check_twins(at::Device device, at::ScalarType type, const std::string& filter = {});

}  // namespace mythos
