// What limits a training step on a GPU, part by part: its floating-point operations over the card's peak against the
// bytes it must move over the card's bandwidth (the roofline model, Williams et al., 2009). An estimate until it is
// measured.
#pragma once

#include "base/json.h"
#include "model/recurrent.h"
#include "plan/hardware.h"

#include <string>
#include <vector>

namespace mythos {

/// How much of peak and bandwidth the parts are taken to reach.
struct RooflineAssumptions {
  double head_products = 0.75;  ///< of the peak: large products
  double other_products = 0.55;
  double attention = 0.40;
  double grouped_products = 0.45;
  double bandwidth = 0.80;
};

struct RooflineRequest {
  ModelConfig model;
  int64_t seq_len = 2048;
  int64_t micro_batch = 1;
  int64_t grad_accum = 1;
  int64_t loops = 0;  ///< 0: max_loop_iters
  Recompute recompute = Recompute::none;
  RooflineAssumptions assumed;
};

/// Numbers of one micro-step; of the optimizer its share of a step.
struct RooflinePart {
  std::string name;
  double flops = 0;        ///< that the device does, recomputation among them
  double bytes = 0;        ///< read from and written to memory, each operand once
  double limit_s = 0;      ///< at peak and full bandwidth, whichever takes longer in each operation
  double estimate_s = 0;   ///< with what is assumed
  bool by_memory = false;  ///< whether most of the estimate is moving bytes
};

struct Roofline {
  std::string gpu;
  RooflineAssumptions assumed;
  std::vector<RooflinePart> parts;
  double tokens = 0;           ///< of a micro-step
  double flops_per_token = 0;  ///< that count: without recomputation
  double peak = 0, bandwidth = 0;
  [[nodiscard]] double limit_seconds() const;
  [[nodiscard]] double estimate_seconds() const;
  [[nodiscard]] double tokens_per_second() const { return tokens / estimate_seconds(); }
  /// Counted FLOP/s over the peak, by the estimate and by the limits alone.
  [[nodiscard]] double mfu() const { return tokens_per_second() * flops_per_token / peak; }
  [[nodiscard]] double most_mfu() const { return tokens / limit_seconds() * flops_per_token / peak; }
  /// The part that would gain most by running at its limit.
  [[nodiscard]] const RooflinePart& next() const;
};

/// bfloat16 products with fp32 sums, gradients and moments in fp32, the ops of kernels/cuda.
Roofline roofline(const Gpu& gpu, const RooflineRequest& request);
std::string roofline_text(const Roofline& r);
Json roofline_json(const Roofline& r);

}  // namespace mythos
