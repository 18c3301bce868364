#include "step/speed.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/safetensors.h"
#include "base/units.h"
#include "kernels/device.h"
#include "model/flops.h"
#include "model/weights_file.h"
#include "step/gemm_rate.h"
#include "step/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Batches {
  at::Tensor ids, targets;  // int64 [S, B, T]
};

at::Tensor read_ids(const SafetensorsFile& file, const char* name, const TrainSpeedOptions& o) {
  const auto& entry = file.at(name);
  if (entry.dtype != DType::I64 || entry.shape.size() != 3 || entry.shape[0] < 1 || entry.shape[1] != o.micro_batch ||
      entry.shape[2] != o.seq_len) {
    throw usage_error(
        fmt::format("'{}' of {} is not int64 [steps, {}, {}]", name, file.path().string(), o.micro_batch, o.seq_len));
  }
  at::Tensor ids = at::empty(entry.shape, at::kLong);
  const auto bytes = file.data(entry);
  std::memcpy(ids.mutable_data_ptr(), bytes.data(), bytes.size());
  return ids;
}

Batches make_batches(const TrainSpeedOptions& o) {
  if (o.batches.empty()) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(o.seed);
    const std::vector<int64_t> shape{(o.warmup + o.steps + 1) * o.grad_accum, o.micro_batch, o.seq_len};
    return {at::randint(o.model.vocab_size, shape, generator, at::kLong),
            at::randint(o.model.vocab_size, shape, generator, at::kLong)};
  }
  const SafetensorsFile file = SafetensorsFile::open(o.batches);
  return {read_ids(file, "input_ids", o), read_ids(file, "targets", o)};
}

}  // namespace

double TrainSpeed::tokens_per_second() const {
  std::vector<double> sorted = step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  const double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  return static_cast<double>(tokens_per_step) / median;
}

TrainSpeed measure_training(const TrainSpeedOptions& o, const std::function<void(const std::string&)>& say) {
  TORCH_CHECK(o.steps > 0 && o.warmup >= 0 && o.grad_accum > 0, "measure_training needs at least one step");
  TrainSpeed result;
  const int64_t loops = o.loops > 0 ? o.loops : o.model.max_loop_iters;
  const int64_t tokens = o.micro_batch * o.seq_len;
  result.tokens_per_step = tokens * o.grad_accum;
  const Batches batches = make_batches(o);

  Model model(o.model, o.device, o.compute, at::kFloat, true);
  AdamW optimizer(model.parameters(), {o.beta1, o.beta2, 1e-8, o.weight_decay, true});
  if (o.weights.empty()) {
    initialize(model.parameters(), o.model, o.seed);
  } else {
    load_weights_file(o.weights, model);
  }
  TrainStep step(model, optimizer);
  int64_t next = 0, loop_runs = 0;
  const LoopObserver count = [&](const LoopReport&) { ++loop_runs; };
  const auto one_step = [&] {
    step.begin({.clip = o.clip,
                .n_loops = loops,
                .recompute = o.recompute,
                // A replayed step calls nobody; on a GPU every loop runs.
                .observer = o.device.is_cpu() ? &count : nullptr,
                .loss_tokens = static_cast<double>(result.tokens_per_step)});
    for (int64_t micro = 0; micro < o.grad_accum; ++micro) {
      const int64_t row = next++ % batches.ids.size(0);
      step.micro_step(batches.ids.select(0, row), batches.targets.select(0, row));
    }
    const StepResult r = step.finish(o.lr);
    if (!r.updated) throw failure("the loss or the gradient is not finite");
    result.losses.push_back(r.loss);
  };

  double longest = 0;
  for (int64_t i = 0; i < o.warmup; ++i) {
    say(fmt::format("warm-up step {} of {}", i + 1, o.warmup));
    const auto begin = Clock::now();
    one_step();
    longest = seconds_since(begin);
  }
  GemmRate rate(gemm_shapes(o.model, tokens, loops, o.device.type()), o.device, o.compute);
  const auto round = [&] {
    rate.round(std::clamp(0.1 * longest, std::min(1.0, 4 * longest), 4.0));
    result.gemm_rates.push_back(rate.last());
  };
  say("matrix multiply");
  round();
  loop_runs = 0;
  for (int64_t i = 0; i < o.steps; ++i) {
    say(fmt::format("step {} of {}", i + 1, o.steps));
    reset_peak_memory(o.device);
    const auto begin = Clock::now();
    one_step();
    longest = seconds_since(begin);
    result.peak_tensor_bytes = std::max(result.peak_tensor_bytes, peak_memory(o.device));
    result.step_seconds.push_back(longest);
    say(fmt::format("{:.2f} s, {:.1f} tokens/s; matrix multiply", longest,
                    static_cast<double>(result.tokens_per_step) / longest));
    round();
  }
  result.loops_run = o.device.is_cpu() ? static_cast<double>(loop_runs) / static_cast<double>(o.steps * o.grad_accum)
                                       : static_cast<double>(loops);
  result.graphs = static_cast<int64_t>(step.graph().graphs());
  result.why_no_graph = step.graph().why_not();
  const double one = flops_per_token(o.model, o.seq_len, 1).train;
  const double more = flops_per_token(o.model, o.seq_len, 2).train - one;
  result.train_flops_per_token = one + (result.loops_run - 1) * more;
  result.gemm_flops_per_s = rate.best();
  result.gemm_by_part.assign(part_names.size(), 0.0);
  for (size_t p = 0; p < part_names.size(); ++p) {
    double flops = 0, time = 0;
    for (size_t i = 0; i < rate.shapes().size(); ++i) {
      if (rate.shapes()[i].part != static_cast<Part>(p)) continue;
      flops += rate.shapes()[i].flops;
      time += rate.shapes()[i].flops / rate.best_by_shape()[i];
    }
    if (time > 0) result.gemm_by_part[p] = flops / time;
  }
  result.peak_resident_bytes = peak_resident_bytes();
  say("one more step, timed by part");
  const auto begin = Clock::now();
  {
    PartTimer timer;
    one_step();
    result.parts = timer.times();
  }
  result.profiled_seconds = seconds_since(begin);
  return result;
}

}  // namespace mythos
