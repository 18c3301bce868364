// Comparison with reference vectors: what a model computes against what the reference computed in fp64.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

struct GoldenFinding {
  std::string what;
  double error = 0;  ///< largest difference over the tensor's largest magnitude
  double tolerance = 0;
  [[nodiscard]] bool ok() const { return error <= tolerance; }  // false for NaN
};

struct GoldenTolerance {
  double one_step = 1e-6;    ///< states, logits, loss, gradients, greedy decode
  double five_steps = 1e-6;  ///< losses, norms and weights over the optimizer steps
};

/// 1e-6 in fp64; 1e-4 and 1e-3 in fp32.
GoldenTolerance golden_tolerance(at::ScalarType type);

/// Runs the model of a golden file (safetensors with `golden` metadata: weights, inputs, expected values) on this
/// device in this dtype and compares parameter count, loop states, halting probabilities, chosen experts, logits (also
/// those of every loop count in one pass), loss, every gradient (with and without recomputation), five optimizer steps
/// and a greedy decode with cache. Nothing for a file without that metadata. Throws Error for one that cannot be read.
std::optional<std::vector<GoldenFinding>> check_golden(const std::filesystem::path& path, at::Device device,
                                                       at::ScalarType type, const GoldenTolerance& tolerance);

}  // namespace mythos
