// How fast a model trains here, with the limit beside it: real optimizer steps, taking turns with the matrix multiply
// they are measured against.
#pragma once

#include "model/config.h"
#include "model/recurrent.h"
#include "step/part_timer.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mythos {

struct TrainSpeedOptions {
  ModelConfig model;
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;
  int64_t seq_len = 2048;
  int64_t micro_batch = 1;
  int64_t grad_accum = 1;
  int64_t loops = 0;   ///< 0: max_loop_iters
  int64_t steps = 3;   ///< counted
  int64_t warmup = 1;  ///< before them, not counted
  Recompute recompute = Recompute::none;
  uint64_t seed = 0;
  std::filesystem::path weights;  ///< safetensors by the reference's names; empty: drawn from the seed
  std::filesystem::path batches;  ///< safetensors with int64 input_ids and targets [S, B, T]; empty: random ids
  double lr = 0;                  ///< 0: the weights stay, so that every step does the same work
  double clip = 1.0, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95;
};

struct TrainSpeed {
  int64_t tokens_per_step = 0;
  double loops_run = 0;              ///< of the counted steps, on average: fewer than asked where every position halted
  double train_flops_per_token = 0;  ///< with that number of loops
  std::vector<double> step_seconds;  ///< of the counted steps
  std::vector<double> losses;        ///< of all steps, those of the warm-up first
  std::vector<double> gemm_rates;    ///< FLOP/s of each round between the steps
  double gemm_flops_per_s = 0;       ///< each shape at its best round, FLOP-weighted
  std::vector<double> gemm_by_part;  ///< the same for each Part's shapes; 0 where it has none
  PartTimes parts;                   ///< of one more step, not counted
  double profiled_seconds = 0;       ///< that step's time
  int64_t peak_tensor_bytes = 0;     ///< the most that tensors took in a counted step; 0 where they are not counted
  int64_t peak_resident_bytes = 0;   ///< of this process, when the steps were done
  int64_t graphs = 0;                ///< CUDA graphs that the micro-steps were captured in
  std::string why_no_graph;          ///< empty where they were

  /// From the median of the counted steps.
  [[nodiscard]] double tokens_per_second() const;
  [[nodiscard]] double limit_tokens_per_second() const { return gemm_flops_per_s / train_flops_per_token; }
  [[nodiscard]] double fraction_of_limit() const { return tokens_per_second() / limit_tokens_per_second(); }
};

/// Builds the model and trains it. `say` gets a line before each part of the work. Throws Error for options or files
/// that do not fit.
TrainSpeed measure_training(const TrainSpeedOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace mythos
