// One optimizer step: micro-steps that accumulate gradients, then clip and update.
#pragma once

#include "dist/sharding.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "optim/router_balance.h"
#include "step/device_input.h"
#include "step/step_graph.h"

namespace mythos {

struct StepOptions {
  double clip = 1.0;    ///< global gradient norm above which gradients are scaled down; 0: never
  int64_t n_loops = 0;  ///< 0: the model's max_loop_iters
  Recompute recompute = Recompute::none;
  /// Told of every loop of the forward passes; alive until finish(). Where micro-steps are captured its work is too: it
  /// must give the device the same work on the same memory each time (LoopStatistics does), and is not called by
  /// replays.
  const LoopObserver* observer = nullptr;
  double loss_tokens = 0;   ///< targets in the whole global batch: what the loss is divided by
  int64_t micro_steps = 1;  ///< on each rank; used where there are several ranks
};

/// What becomes a CUDA graph.
enum class Capture {
  never,
  when_possible,  ///< each micro-step on a GPU where one process trains
};

struct StepResult {
  double loss = 0;              ///< mean over the global batch
  double gradient_norm = 0;     ///< before clipping
  bool updated = false;         ///< false: loss or norm not finite, and no weight, moment or counter was touched
  int64_t first_bad_rank = -1;  ///< the first rank whose own loss is not finite; -1: none
};

class TrainStep {
 public:
  /// `sharding`: of several ranks, all of which do the same steps on rows of their own; null for a process by itself.
  /// `router_bias_speed`: see RouterBalance.
  TrainStep(Model& model, AdamW& optimizer, Sharding* sharding = nullptr, double router_bias_speed = 0,
            Capture capture = Capture::when_possible);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Clears what an earlier, unfinished step accumulated.
  void begin(const StepOptions& options);
  /// Forward and backward of ids and targets, int64 [B, T] on the CPU or the model's device. On a GPU this only gives
  /// it the work: finish() waits.
  void micro_step(const at::Tensor& ids, const at::Tensor& targets);
  /// Clips, updates with this learning rate and reports.
  StepResult finish(double lr);

  /// How micro-steps reach a GPU.
  [[nodiscard]] const StepGraph& graph() const { return graph_; }

 private:
  void forward_and_backward(const at::Tensor& ids, const at::Tensor& targets);

  Model& model_;
  AdamW& optimizer_;
  Sharding* sharding_;
  RouterBalance balance_;
  LoopObserver count_experts_;
  StepOptions options_;
  DeviceInput input_;
  StepGraph graph_;
  at::Tensor loss_;           // fp64, of all micro-steps; like what follows always in the same memory
  at::Tensor ids_, targets_;  // what a graph reads
  int64_t micro_steps_ = 0;   // begun
  bool observed_ = false;     // this one
};

}  // namespace mythos
