#include "infer/loop_statistics.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace mythos {
namespace {

// Adds to the count of a loop, which may be the first there is.
void add(std::vector<at::Tensor>& counts, size_t loop, const at::Tensor& more) {
  if (counts.size() <= loop) counts.resize(loop + 1);
  counts[loop] = counts[loop].defined() ? counts[loop] + more : more;
}

ExpertLoad load_of(std::span<const double> counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  ExpertLoad load;
  for (const double n : counts) load.share.push_back(total > 0 ? n / total : 0);
  return load;
}

}  // namespace

LoopStatistics::LoopStatistics(int64_t n_experts, double act_threshold)
    : n_experts_(n_experts), threshold_(act_threshold), observer_([this](const LoopReport& r) { see(r); }) {}

void LoopStatistics::begin() {
  chosen_.clear();
  running_.clear();
  cumulative_ = halted_ = at::Tensor();
  positions_ = 0;
}

void LoopStatistics::see(const LoopReport& r) {
  const at::NoGradGuard no_grad;
  const auto t = static_cast<size_t>(r.loop);
  const at::Tensor experts = r.experts.reshape(-1);
  add(chosen_, t, at::zeros({n_experts_}, experts.options()).scatter_add_(0, experts, at::ones_like(experts)));
  if (r.loop == 0) {
    positions_ += r.halt_p.numel();
    cumulative_ = at::zeros_like(r.halt_p);
    halted_ = at::zeros(r.halt_p.sizes(), r.halt_p.options().dtype(at::kBool));
  }
  // As ACT counts: what a position adds up while it runs.
  cumulative_ = cumulative_ + r.halt_p * halted_.logical_not().to(r.halt_p.scalar_type());
  halted_ = halted_.logical_or(cumulative_.ge(threshold_));
  add(running_, t, halted_.logical_not().sum());
}

LoopSummary LoopStatistics::read(int64_t n_loops, Communicator& world) const {
  // By loop: choices of each expert, and positions that have not halted after it; then positions. Loops that did not
  // run had nothing left to do.
  const auto width = static_cast<size_t>(n_experts_) + 1, loops = static_cast<size_t>(n_loops);
  std::vector<int64_t> own(loops * width + 1);
  for (size_t t = 0; t < std::min(running_.size(), loops); ++t) {
    const at::Tensor chosen = chosen_[t].cpu().contiguous();
    std::copy_n(chosen.const_data_ptr<int64_t>(), n_experts_, &own[t * width]);
    own[t * width + width - 1] = running_[t].item<int64_t>();
  }
  own.back() = positions_;
  std::vector<double> sums(own.size());
  for (const auto& of_rank : all_numbers(world, own)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(of_rank[i]);
  }
  LoopSummary s;
  if (sums.back() == 0) return s;
  std::vector<double> all(width - 1);
  s.mean_loops = n_loops > 0 ? 1 : 0;
  for (size_t t = 0; t < loops; ++t) {
    const std::span counts(&sums[t * width], width - 1);
    for (size_t e = 0; e < counts.size(); ++e) all[e] += counts[e];
    s.experts_by_loop.push_back(load_of(counts));
    const double left = sums[t * width + width - 1] / sums.back();
    s.halted_by_loop.push_back(1 - left);
    if (t + 1 < loops) s.mean_loops += left;
  }
  s.experts = load_of(all);
  return s;
}

}  // namespace mythos
