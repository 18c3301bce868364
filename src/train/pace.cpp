#include "train/pace.h"

#include "base/machine.h"

#include <fmt/format.h>

namespace mythos {

void Pace::step(double seconds, double wait) {
  last_ = {seconds, wait, 1};
  for (Span* const span : {&window_, &trained_}) {
    span->seconds += seconds;
    span->wait += wait;
    ++span->steps;
  }
}

void Pace::fill_window(StepMetrics& metrics, int64_t done) {
  fill(metrics, done, window_);
  window_ = {};
}

void Pace::fill(StepMetrics& metrics, int64_t done, const Span& span) const {
  metrics.tokens_per_second = static_cast<double>(span.steps * options_.tokens_per_step) / span.seconds;
  metrics.mfu = metrics.tokens_per_second * options_.flops_per_token / options_.peak_flops;
  metrics.memory_bytes = peak_resident_bytes();
  metrics.data_wait = span.wait / span.seconds;
  metrics.eta_seconds = seconds_left(done).value_or(0);
  metrics.price_per_hour = options_.price_per_hour;
  metrics.hours_so_far = seconds() / 3600;
}

std::optional<double> Pace::seconds_left(int64_t done) const {
  if (trained_.steps == 0) return std::nullopt;
  return trained_.seconds / static_cast<double>(trained_.steps) * static_cast<double>(options_.steps - done);
}

std::string Pace::limit_reached() const {
  const double hours = seconds() / 3600;
  if (options_.max_hours > 0 && hours >= options_.max_hours) {
    return fmt::format("train.max_hours = {} is reached", options_.max_hours);
  }
  if (options_.budget > 0 && options_.price_per_hour * hours >= options_.budget) {
    return fmt::format("cost.budget = {} is spent", options_.budget);
  }
  return "";
}

}  // namespace mythos
