#include "train/planned_pace.h"

#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mythos {
namespace {

std::string rate_text(double tokens_per_second) {
  return tokens_per_second < 100 ? fmt::format("{:.1f}", tokens_per_second)
                                 : with_commas(static_cast<int64_t>(tokens_per_second + 0.5));
}

}  // namespace

Json to_json(const PlannedPace& p) {
  return {{"tokens_per_s", p.tokens_per_second},
          {"micro_batch", p.micro_batch},
          {"recompute", p.recompute == Recompute::loop},
          {"source", p.source}};
}

std::optional<PlannedPace> planned_pace_from(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto rate = json.find("tokens_per_s"), rows = json.find("micro_batch"), again = json.find("recompute"),
             source = json.find("source");
  if (rate == json.end() || !rate->is_number() || rows == json.end() || !rows->is_number_integer() ||
      again == json.end() || !again->is_boolean() || source == json.end() || !source->is_string()) {
    return std::nullopt;
  }
  PlannedPace p{rate->get<double>(), rows->get<int64_t>(), again->get<bool>() ? Recompute::loop : Recompute::none,
                source->get<std::string>()};
  if (!(p.tokens_per_second > 0) || !std::isfinite(p.tokens_per_second)) return std::nullopt;
  return p;
}

PaceWatch::PaceWatch(PlannedPace planned, int64_t micro_batch, Recompute recompute, int64_t least_steps)
    : planned_(std::move(planned)), micro_batch_(micro_batch), recompute_(recompute), least_steps_(least_steps) {}

std::optional<std::string> PaceWatch::add(int64_t steps, double tokens_per_second, double data_wait) {
  if (steps < 1 || !(tokens_per_second > 0)) return std::nullopt;
  const double time = static_cast<double>(steps) / tokens_per_second;
  steps_ += steps;
  time_ += time;
  waited_ += data_wait * time;
  if (steps_ < least_steps_) return std::nullopt;
  const double rate = static_cast<double>(steps_) / time_;
  const double share = waited_ / time_;
  steps_ = 0;
  time_ = waited_ = 0;
  if (!(planned_.tokens_per_second > 0)) {
    planned_ = {rate, micro_batch_, recompute_, "this run's first steps"};
    return std::nullopt;
  }
  const double ratio = rate / planned_.tokens_per_second;
  if (std::abs(ratio - 1) <= tolerance) {
    off_ = 0;
  } else if (ratio < 1) {
    off_ = std::max(0, off_) + 1;
  } else {
    off_ = std::min(0, off_) - 1;
  }
  if (std::abs(off_) < 2 || said_) return std::nullopt;
  said_ = true;
  return fmt::format(
      "{} tokens/s, {:.0f}% {} than planned ({} tokens/s, {}): {}; eta and cost are of the steps as they are",
      rate_text(rate), 100 * std::abs(ratio - 1), ratio < 1 ? "slower" : "faster",
      rate_text(planned_.tokens_per_second), planned_.source, cause(ratio, share));
}

std::string PaceWatch::cause(double ratio, double share) const {
  if (ratio < 1 && share >= (1 - ratio) / 2) {
    return fmt::format("{:.0f}% of the time goes into waiting for data (more data.workers, or prepare it once)",
                       100 * share);
  }
  if (recompute_ != planned_.recompute) {
    return recompute_ == Recompute::loop ? "loops are recomputed now, and were not in the plan"
                                         : "loops are not recomputed now, and were in the plan";
  }
  if (micro_batch_ != planned_.micro_batch) {
    return fmt::format("micro_batch is {} now, and was {} in the plan", micro_batch_, planned_.micro_batch);
  }
  if (ratio < 1) {
    return "the steps themselves take longer: other work on this machine, a device that throttles (temperature and "
           "clocks are in the metrics), or more loops before every position has halted";
  }
  return "the steps themselves take less: a machine with less other work, or fewer loops before every position has "
         "halted";
}

}  // namespace mythos
