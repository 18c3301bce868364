#include "infer/loop_statistics.h"

#include <ATen/core/grad_mode.h>

namespace mythos {
namespace {

// Adds to the count of a loop, which may be the first there is.
void add(std::vector<at::Tensor>& counts, size_t loop, const at::Tensor& more) {
  if (counts.size() <= loop) counts.resize(loop + 1);
  counts[loop] = counts[loop].defined() ? counts[loop] + more : more;
}

ExpertLoad load_of(const at::Tensor& counts) {
  ExpertLoad load;
  const at::Tensor here = counts.cpu().contiguous();
  const auto total = here.sum().item<double>();
  for (int64_t e = 0; e < here.numel(); ++e) {
    const auto n = static_cast<double>(here.const_data_ptr<int64_t>()[e]);
    load.share.push_back(total > 0 ? n / total : 0);
  }
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

LoopSummary LoopStatistics::read(int64_t n_loops) const {
  LoopSummary s;
  if (positions_ == 0) return s;
  at::Tensor all = at::zeros({n_experts_}, at::kLong);
  s.mean_loops = n_loops > 0 ? 1 : 0;
  for (int64_t t = 0; t < n_loops; ++t) {
    // Loops that did not run had nothing left to do.
    const auto i = static_cast<size_t>(t);
    const bool ran = i < running_.size();
    const at::Tensor counts = ran ? chosen_[i].cpu() : at::zeros({n_experts_}, at::kLong);
    all = all + counts;
    s.experts_by_loop.push_back(load_of(counts));
    const double left = ran ? running_[i].item<double>() / static_cast<double>(positions_) : 0.0;
    s.halted_by_loop.push_back(1 - left);
    if (t + 1 < n_loops) s.mean_loops += left;
  }
  s.experts = load_of(all);
  return s;
}

}  // namespace mythos
