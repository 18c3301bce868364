// How fast each fused op is: against its form from composite operations, and against what the machine can do.
#pragma once

#include "model/config.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mythos {

struct OpSpeedOptions {
  ModelConfig model;
  int64_t seq_len = 2048;
  int64_t micro_batch = 1;
  int64_t head_tokens = 256;  ///< of the head and loss: its composite form holds all their logits, several times
  double seconds = 2;         ///< for each op, about; every form is run three times at least
  std::string filter;         ///< only ops with this in their names; empty: all
  uint64_t seed = 0;
  at::Device device = at::kCPU;
  at::ScalarType type = at::kFloat;  ///< of activations and weights; gradients of weights are fp32 sums
};

/// Seconds of one run, the best of several rounds in which the forms took turns.
struct OpTimes {
  double ours = 0;
  double composite = 0;
  [[nodiscard]] double ratio() const { return composite / ours; }
};

struct OpSpeed {
  std::string name;
  std::string shape;         ///< for people: "2,048 x 1,024"
  OpTimes forward;           ///< without gradients
  bool has_backward = true;  ///< false: the optimizer
  OpTimes both;              ///< forward and backward; where there is no backward pass the same as forward
  /// What limits it: FLOP of its matrix products, or bytes that must be read and written even with all in one pass.
  bool by_flops = false;
  double forward_work = 0, both_work = 0;  ///< FLOP or bytes
  /// FLOP/s of LibTorch's products in the op's own shapes (attention: of the projections around it), or bytes/s of a
  /// copy of a large buffer, read and written. Measured in the same run, around the op.
  double limit = 0;

  [[nodiscard]] double forward_rate() const { return forward_work / forward.ours; }
  [[nodiscard]] double both_rate() const { return both_work / both.ours; }
};

/// "rms_norm", "feed_forward", ... in the order they are measured.
const std::vector<std::string>& op_names();

/// Measures the ops, both forms on the same inputs in the shapes of the model. Where the composite form of an op does
/// not fit into a device's memory its times are infinite. `say` gets the name of each op before its turn. Throws usage
/// Error where the filter fits no op, naming the nearest, and where the model has fewer positions than seq_len.
std::vector<OpSpeed> measure_ops(const OpSpeedOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace mythos
