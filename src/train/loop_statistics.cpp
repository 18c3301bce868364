#include "train/loop_statistics.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace mythos {

double LoopSummary::max_over_mean() const {
  if (expert_share.empty()) return 0;
  return *std::max_element(expert_share.begin(), expert_share.end()) * static_cast<double>(expert_share.size());
}

int64_t LoopSummary::unused() const { return std::count(expert_share.begin(), expert_share.end(), 0.0); }

namespace {

// A share to six digits: what is behind them is noise, and lines stay short.
Json shares(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(std::round(v * 1e6) / 1e6);
  return out;
}

}  // namespace

Json experts_json(const LoopSummary& s) {
  return {{"share", shares(s.expert_share)}, {"max_over_mean", s.max_over_mean()}, {"unused", s.unused()}};
}

Json halting_json(const LoopSummary& s) {
  return {{"mean_loops", s.mean_loops}, {"halted_by_loop", shares(s.halted_by_loop)}};
}

LoopStatistics::LoopStatistics(int64_t n_experts, double act_threshold)
    : n_experts_(n_experts), threshold_(act_threshold), observer_([this](const LoopReport& r) { see(r); }) {}

void LoopStatistics::begin() {
  chosen_ = at::Tensor();
  running_.clear();
  cumulative_ = halted_ = at::Tensor();
  positions_ = 0;
}

void LoopStatistics::see(const LoopReport& r) {
  const at::NoGradGuard no_grad;
  const at::Tensor experts = r.experts.reshape(-1);
  if (!chosen_.defined()) chosen_ = at::zeros({n_experts_}, experts.options());
  chosen_.scatter_add_(0, experts, at::ones_like(experts));
  if (r.loop == 0) {
    positions_ += r.halt_p.numel();
    cumulative_ = at::zeros_like(r.halt_p);
    halted_ = at::zeros(r.halt_p.sizes(), r.halt_p.options().dtype(at::kBool));
  }
  // As ACT counts: what a position adds up while it runs.
  cumulative_ = cumulative_ + r.halt_p * halted_.logical_not().to(r.halt_p.scalar_type());
  halted_ = halted_.logical_or(cumulative_.ge(threshold_));
  const at::Tensor running = halted_.logical_not().sum();
  const auto t = static_cast<size_t>(r.loop);
  if (running_.size() <= t) running_.resize(t + 1);
  running_[t] = running_[t].defined() ? running_[t] + running : running;
}

LoopSummary LoopStatistics::read(int64_t n_loops, Communicator& world) const {
  // Choices of each expert, positions that have not halted after each loop, positions. Loops that did not run had
  // nothing left to do.
  std::vector<int64_t> counts(static_cast<size_t>(n_experts_ + n_loops + 1));
  if (chosen_.defined()) {
    const at::Tensor chosen = chosen_.cpu();
    std::copy_n(chosen.const_data_ptr<int64_t>(), n_experts_, counts.begin());
  }
  for (size_t t = 0; t < std::min(running_.size(), static_cast<size_t>(n_loops)); ++t) {
    counts[static_cast<size_t>(n_experts_) + t] = running_[t].item<int64_t>();
  }
  counts.back() = positions_;
  std::vector<double> sums(counts.size());
  for (const auto& of_rank : all_numbers(world, counts)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(of_rank[i]);
  }
  LoopSummary s;
  if (sums.back() == 0) return s;
  double total = 0;
  for (int64_t e = 0; e < n_experts_; ++e) total += sums[static_cast<size_t>(e)];
  for (int64_t e = 0; e < n_experts_; ++e) s.expert_share.push_back(sums[static_cast<size_t>(e)] / total);
  s.mean_loops = n_loops > 0 ? 1 : 0;
  for (int64_t t = 0; t < n_loops; ++t) {
    const double left = sums[static_cast<size_t>(n_experts_ + t)] / sums.back();
    s.halted_by_loop.push_back(1 - left);
    if (t + 1 < n_loops) s.mean_loops += left;
  }
  return s;
}

}  // namespace mythos
