#include "infer/loop_statistics.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace mythos {
namespace {

ExpertLoad load_of(std::span<const double> counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  ExpertLoad load;
  for (const double n : counts) load.share.push_back(total > 0 ? n / total : 0);
  return load;
}

}  // namespace

LoopStatistics::LoopStatistics(int64_t n_experts, double act_threshold, int64_t loops)
    : n_experts_(n_experts),
      threshold_(act_threshold),
      loops_(loops),
      observer_([this](const LoopReport& r) { see(r); }) {}

void LoopStatistics::begin() {
  if (counts_.defined()) counts_.zero_();
  cumulative_ = halted_ = at::Tensor();
}

void LoopStatistics::see(const LoopReport& r) {
  const at::NoGradGuard no_grad;
  const at::Tensor experts = r.experts.reshape(-1);
  if (!counts_.defined() || r.loop >= loops_) {
    const at::Tensor before = counts_;
    const int64_t old = loops_;
    loops_ = std::max(loops_, r.loop + 1);
    counts_ = at::zeros({loops_ + 1, n_experts_ + 1}, experts.options());
    if (before.defined()) {
      counts_.narrow(0, 0, old).copy_(before.narrow(0, 0, old));
      counts_.select(0, loops_).copy_(before.select(0, old));
    }
  }
  at::Tensor row = counts_.select(0, r.loop);
  row.scatter_add_(0, experts, at::ones_like(experts));
  if (r.loop == 0) {
    counts_.select(0, loops_).narrow(0, n_experts_, 1).add_(r.halt_p.numel());
    cumulative_ = at::zeros_like(r.halt_p);
    halted_ = at::zeros(r.halt_p.sizes(), r.halt_p.options().dtype(at::kBool));
  }
  // As ACT counts: what a position adds up while it runs.
  cumulative_ = cumulative_ + r.halt_p * halted_.logical_not().to(r.halt_p.scalar_type());
  halted_ = halted_.logical_or(cumulative_.ge(threshold_));
  row.narrow(0, n_experts_, 1).add_(halted_.logical_not().sum());
}

LoopSummary LoopStatistics::read(int64_t n_loops, Communicator& world) const {
  // By loop: choices of each expert, and positions that have not halted after it; then positions. Loops that did not
  // run had nothing left to do.
  const auto width = static_cast<size_t>(n_experts_) + 1, loops = static_cast<size_t>(n_loops);
  std::vector<int64_t> own(loops * width + 1);
  if (counts_.defined()) {
    const at::Tensor counts = counts_.cpu().contiguous();
    const auto* numbers = counts.const_data_ptr<int64_t>();
    std::copy_n(numbers, std::min(static_cast<size_t>(loops_), loops) * width, own.begin());
    own.back() = numbers[static_cast<size_t>(loops_) * width + width - 1];
  }
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
