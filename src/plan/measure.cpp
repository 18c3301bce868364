#include "plan/measure.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/units.h"
#include "kernels/device.h"
#include "step/train_step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <new>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr std::array<int64_t, 12> sizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Relative standard error of a mean.
double error_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  if (values.size() < 2) return 0.05;  // one value says nothing of its spread
  double sum = 0, squares = 0;
  for (const double x : values) sum += x;
  const double mean = sum / n;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1) / n) / mean;
}

}  // namespace

std::span<const int64_t> micro_batches() { return sizes; }

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view what = error.what();
  return what.find("DefaultCPUAllocator: ") != std::string_view::npos ||
         what.find("out of memory") != std::string_view::npos;
}

struct Measurer::State {
  explicit State(const MeasureOptions& o)
      : model(o.model, o.device, o.compute, at::kFloat, true),
        optimizer(model.parameters(), {}),
        step(model, optimizer) {
    initialize(model.parameters(), o.model, o.seed);
  }
  Model model;
  AdamW optimizer;
  TrainStep step;
};

Measurer::Measurer(MeasureOptions options) : options_(std::move(options)) {
  TORCH_CHECK(!options_.loops.empty() && options_.micro_steps > 0, "nothing to measure");
  try {
    state_ = std::make_unique<State>(options_);
  } catch (const std::exception& e) {
    if (!is_out_of_memory(e)) throw;
  }
}
Measurer::~Measurer() = default;

at::Tensor Measurer::rows(int64_t n) {
  at::Tensor ids = at::empty({n, options_.seq_len + 1}, at::kLong);
  std::vector<int32_t> row(static_cast<size_t>(options_.seq_len) + 1);
  for (int64_t r = 0; r < n; ++r) {
    if (options_.next_row && !options_.next_row(row)) options_.next_row = nullptr;  // the rest is random
    if (!options_.next_row) {
      ids.select(0, r).copy_(at::randint(options_.model.vocab_size, {options_.seq_len + 1}, at::kLong));
      continue;
    }
    std::copy(row.begin(), row.end(), ids.mutable_data_ptr<int64_t>() + r * (options_.seq_len + 1));
  }
  return ids;
}

Trial Measurer::measure(int64_t micro_batch, Recompute recompute) {
  const auto begin = Clock::now();
  Trial trial;
  trial.micro_batch = micro_batch;
  trial.recompute = recompute;
  if (!state_) {
    trial.out_of_memory = true;
    return trial;
  }
  options_.say(
      fmt::format("measuring micro_batch {}{}", micro_batch, recompute == Recompute::loop ? ", loops recomputed" : ""));
  try {
    TrainStep& step = state_->step;
    int64_t loop_runs = 0, counted = 0;
    const LoopObserver count = [&](const LoopReport&) { ++loop_runs; };
    const auto micro_step = [&] {
      const at::Tensor ids = rows(micro_batch);
      const auto start = Clock::now();
      step.micro_step(ids.narrow(1, 0, options_.seq_len).contiguous(), ids.narrow(1, 1, options_.seq_len).contiguous());
      wait_for_device(options_.device);
      return seconds_since(start);
    };
    const auto start_step = [&](int64_t loops) {
      // The loss of one micro-step is divided by what a step would have; only its size, not its time, hangs on that.
      step.begin({.clip = 1,
                  .n_loops = loops,
                  .recompute = recompute,
                  .observer = &count,
                  .loss_tokens = static_cast<double>(micro_batch * options_.seq_len)});
      wait_for_device(options_.device);
    };
    start_step(*std::max_element(options_.loops.begin(), options_.loops.end()));
    micro_step();  // also makes tables and the largest buffers
    step.finish(0);
    reset_peak_memory(options_.device);
    loop_runs = 0;
    std::vector<double> updates;
    double variance = 0;
    for (const int64_t loops : options_.loops) {
      const auto start = Clock::now();
      start_step(loops);
      double once = seconds_since(start);
      std::vector<double> seconds;
      for (int64_t i = 0; i < options_.micro_steps; ++i, ++counted) seconds.push_back(micro_step());
      const auto finish = Clock::now();
      step.finish(0);  // the weights stay: every trial does the same work
      once += seconds_since(finish);
      updates.push_back(once);
      const double typical = median(seconds);
      trial.micro_seconds += typical / static_cast<double>(options_.loops.size());
      variance += std::pow(error_of(seconds) * typical / static_cast<double>(options_.loops.size()), 2);
    }
    trial.update_seconds = median(updates);
    trial.deviation = std::sqrt(variance) / trial.micro_seconds;
    trial.loops_run = static_cast<double>(loop_runs) / static_cast<double>(counted);
    trial.peak_bytes = peak_memory(options_.device);
  } catch (const std::exception& e) {
    if (!is_out_of_memory(e)) throw;
    trial.out_of_memory = true;
  }
  if (trial.out_of_memory) {
    state_->model.parameters().zero_gradients();
    release_cached_memory(options_.device);
  }
  trial.seconds = seconds_since(begin);
  return trial;
}

namespace {

std::string rate_text(double tokens_per_second) {
  return tokens_per_second < 100
             ? fmt::format("{:.1f} tokens/s", tokens_per_second)
             : fmt::format("{} tokens/s", with_commas(static_cast<int64_t>(tokens_per_second + 0.5)));
}

Error nothing_fits() {
  return refusal("not even one row at a time fits into this device's memory",
                 "use a smaller model or train.seq_len, train.recompute = \"loop\", or a larger device");
}

}  // namespace

BatchSearch search_batch(Measurer& measurer, const SearchLimits& limits) {
  BatchSearch search;
  const int64_t seq_len = measurer.options().seq_len;
  const auto rate = [&](const Trial& t) { return t.tokens_per_second(seq_len, limits.grad_accum(t.micro_batch)); };
  double spent = 0, best = 0;
  std::string end = "no larger one is looked at";
  int64_t without_gain = 0;
  for (const int64_t n : sizes) {
    if (n > limits.most_rows) {
      end = "a larger one would pass the global batch";
      break;
    }
    const auto recompute = limits.recompute(n);
    if (!recompute) {
      end = fmt::format("{} is predicted not to fit", n);
      break;
    }
    if (!search.trials.empty()) {
      const Trial& last = search.trials.back();
      const double expected = last.seconds * static_cast<double>(n) / static_cast<double>(last.micro_batch);
      if (spent + expected > limits.seconds) {
        end = fmt::format("{} was not tried: it would have taken another {}", n, duration_text(expected));
        break;
      }
    }
    search.trials.push_back(measurer.measure(n, *recompute));
    const Trial& trial = search.trials.back();
    spent += trial.seconds;
    if (trial.out_of_memory) {
      end = fmt::format("{} ran out of memory", n);
      break;
    }
    const double now = rate(trial);
    without_gain = now > best * (1 + limits.gain) ? 0 : without_gain + 1;
    best = std::max(best, now);
    if (without_gain >= 2) {
      end = "larger ones gain nothing";
      break;
    }
  }
  const Trial* chosen = nullptr;
  for (const Trial& t : search.trials) {
    if (!t.out_of_memory && chosen == nullptr && rate(t) * (1 + limits.gain) >= best) chosen = &t;
  }
  if (chosen == nullptr) throw nothing_fits();
  search.chosen = *chosen;
  search.why = fmt::format("micro_batch {} is the smallest within {:.0f}% of the fastest of {} measured ({}); {}",
                           chosen->micro_batch, 100 * limits.gain, search.trials.size(), rate_text(rate(*chosen)), end);
  return search;
}

BatchSearch try_batch(Measurer& measurer, int64_t micro_batch, const SearchLimits& limits) {
  BatchSearch search;
  const auto one = [&](int64_t n) {
    search.trials.push_back(measurer.measure(n, limits.recompute(n).value_or(Recompute::loop)));
    return !search.trials.back().out_of_memory;
  };
  bool good = one(micro_batch);
  for (auto n = sizes.rbegin(); n != sizes.rend() && !good; ++n) {
    if (*n < micro_batch) good = one(*n);
  }
  if (!good) throw nothing_fits();
  search.chosen = search.trials.back();
  search.why = search.trials.size() == 1
                   ? fmt::format("micro_batch {} is the configuration's", micro_batch)
                   : fmt::format("micro_batch {} ran out of memory; {} is the largest tried that did not", micro_batch,
                                 search.chosen.micro_batch);
  return search;
}

}  // namespace mythos
