// How fast a model trains here, by micro-batch: the real model, real steps, before a run is begun.
#pragma once

#include "model/config.h"
#include "model/recurrent.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// Rows at once that are looked at: 1, 2, 3, 4, 6, 8, 12, ... 64.
std::span<const int64_t> micro_batches();

struct MeasureOptions {
  ModelConfig model;
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;
  int64_t seq_len = 2048;
  std::vector<int64_t> loops;  ///< the choices drawn from each step; each is measured
  uint64_t seed = 0;           ///< of the fresh weights
  int64_t micro_steps = 3;     ///< counted for each choice of loops
  /// Fills a row of seq_len + 1 ids; false where there are no more. Empty: random ids.
  std::function<bool(std::span<int32_t>)> next_row;
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< told before each trial
};

/// What one micro-batch size was seen to take.
struct Trial {
  int64_t micro_batch = 0;
  Recompute recompute = Recompute::none;
  bool out_of_memory = false;  ///< nothing below is known then
  double micro_seconds = 0;    ///< one micro-step: the mean over the loop choices of each one's median
  double update_seconds = 0;   ///< what comes once a step: clearing gradients, their norm, the optimizer
  double deviation = 0;        ///< relative standard error of micro_seconds
  double loops_run = 0;        ///< on average; fewer than asked where every position had halted
  int64_t peak_bytes = 0;      ///< the most that tensors took, as the allocator counts; 0 where it does not
  double seconds = 0;          ///< what the trial itself took

  [[nodiscard]] double step_seconds(int64_t grad_accum) const {
    return static_cast<double>(grad_accum) * micro_seconds + update_seconds;
  }
  [[nodiscard]] double tokens_per_second(int64_t seq_len, int64_t grad_accum) const {
    return static_cast<double>(micro_batch * seq_len * grad_accum) / step_seconds(grad_accum);
  }
};

/// Builds the model once and times micro-steps of any size with it. The weights stay as they are drawn.
class Measurer {
 public:
  explicit Measurer(MeasureOptions options);
  ~Measurer();
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;

  /// One warm-up micro-step, the counted ones, an update. Running out of memory is an answer, not an error.
  Trial measure(int64_t micro_batch, Recompute recompute);
  [[nodiscard]] const MeasureOptions& options() const { return options_; }

 private:
  at::Tensor rows(int64_t n);

  MeasureOptions options_;
  struct State;
  std::unique_ptr<State> state_;  // none where the weights alone do not fit
};

/// What the search for a micro-batch is allowed.
struct SearchLimits {
  int64_t most_rows = 64;  ///< larger ones would pass the global batch
  double seconds = 60;     ///< no further trial is begun that would pass this; the first is always made
  double gain = 0.03;      ///< a larger micro-batch must be so much faster
  std::function<int64_t(int64_t)> grad_accum;                  ///< of a micro-batch
  std::function<std::optional<Recompute>(int64_t)> recompute;  ///< of a micro-batch; nothing: it does not fit
};
struct BatchSearch {
  std::vector<Trial> trials;
  Trial chosen;
  std::string why;  ///< one sentence
};
/// Trials from 1 upwards until memory or time ends or nothing is gained any more; the smallest micro-batch is chosen
/// that no other beats by `gain`. Throws a refusal if not even one row fits.
BatchSearch search_batch(Measurer& measurer, const SearchLimits& limits);
/// Trial of a given micro-batch, and where it runs out of memory of the next smaller ones.
BatchSearch try_batch(Measurer& measurer, int64_t micro_batch, const SearchLimits& limits);

/// Whether this is LibTorch or the system saying that there is no more memory.
bool is_out_of_memory(const std::exception& error);

}  // namespace mythos
