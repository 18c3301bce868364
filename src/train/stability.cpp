#include "train/stability.h"

#include "base/log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>
#include <vector>

namespace mythos {
namespace {

bool finite_all(const at::Tensor& t) { return t.isfinite().all().item<bool>(); }

// "recurrent.block.ffn.router.weight [32, 1024] at [3, 17]: inf (2 of 32768 not finite)"
std::string described(const NamedTensor& t) {
  const at::Tensor bad = t.tensor.detach().isfinite().logical_not();
  const at::Tensor places = bad.nonzero();
  const at::Tensor place = places[0].cpu().contiguous();
  std::vector<int64_t> index(place.const_data_ptr<int64_t>(), place.const_data_ptr<int64_t>() + place.numel());
  at::Tensor value = t.tensor.detach();
  for (const int64_t i : index) value = value.select(0, i);
  return fmt::format("{} {} at [{}]: {} ({} of {} not finite)", t.name, fmt::join(t.tensor.sizes(), " x "),
                     fmt::join(index, ", "), value.item<double>(), places.size(0), t.tensor.numel());
}

// The first that is not finite, and how many there are.
std::string among(const std::vector<NamedTensor>& tensors) {
  std::string first;
  int64_t count = 0;
  for (const NamedTensor& t : tensors) {
    if (finite_all(t.tensor)) continue;
    if (++count == 1) first = described(t);
  }
  if (count > 1) first += fmt::format(", and {} more tensors", count - 1);
  return first;
}

}  // namespace

Verdict Stability::not_finite() {
  ++skipped_;
  if (++in_row_ < skip_limit_) return Verdict::skip;
  in_row_ = 0;
  if (rollbacks_ >= rollback_limit_) return Verdict::give_up;
  ++rollbacks_;
  return Verdict::roll_back;
}

std::optional<double> Stability::finite(double loss) {
  in_row_ = 0;
  const double mean = mean_;
  const double deviation = std::sqrt(variance_);
  const bool spike = seen_ >= 20 && loss - mean > std::max(6 * deviation, 0.01 * std::abs(mean));
  const double share = std::max(0.02, 1.0 / static_cast<double>(++seen_));
  // As if it lay at the limit.
  const double counted = spike ? std::min(loss, mean + 6 * deviation + 0.01 * std::abs(mean)) : loss;
  mean_ += share * (counted - mean_);
  in_row_high_ = spike ? in_row_high_ + 1 : 0;
  if (in_row_high_ == 10) mean_ = loss;  // a level that stays is the new average
  // From neighbours, so that a falling curve is not taken for noise.
  if (seen_ > 1) variance_ += share * ((counted - last_) * (counted - last_) / 2 - variance_);
  last_ = counted;
  if (!spike) return std::nullopt;
  return mean;
}

bool Stability::collapsed(const ExpertLoad& load, int64_t chosen) {
  const auto experts = static_cast<int64_t>(load.share.size());
  if (experts <= chosen || load.max_over_mean() == 0) return false;
  // Each token chooses different experts: the least there can be is that all choose the same ones.
  const double least = std::log2(static_cast<double>(chosen)), most = std::log2(static_cast<double>(experts));
  const double left = (load.entropy() - least) / (most - least);
  const bool before = std::exchange(collapsed_, left < (collapsed_ ? 0.2 : 0.1));
  return collapsed_ && !before;
}

void look_for_trouble(Stability& stability, const StepMetrics& step, int64_t chosen_experts, bool say) {
  const auto usual = stability.finite(step.loss);
  const bool collapsed = step.watched && stability.collapsed(step.watched->experts, chosen_experts);
  if (!say) return;
  if (usual) {
    log::warn("the loss of step {} stands out: {:.4f}, the steps before had {:.4f} on average", step.step, step.loss,
              *usual);
  }
  if (!collapsed) return;
  const ExpertLoad& load = step.watched->experts;
  log::warn(
      "at step {} nearly all tokens go to the same experts: the busiest has {:.1f} times the mean, {} of {} have "
      "none; train.router_bias_speed = 0.001 would spread them",
      step.step, load.max_over_mean(), load.unused(), load.share.size());
}

std::string first_not_finite(Model& model, const at::Tensor& ids, int64_t n_loops) {
  const at::NoGradGuard no_grad;
  if (const std::string weight = among(model.parameters().named_values()); !weight.empty()) {
    return "the first weight that is not finite is " + weight;
  }
  int64_t bad_loop = -1;
  std::string what;
  const LoopObserver observer = [&](const LoopReport& r) {
    if (bad_loop >= 0) return;
    if (!finite_all(r.state)) {
      bad_loop = r.loop;
      what = described({"state", r.state});
    } else if (!finite_all(r.halt_p)) {
      bad_loop = r.loop;
      what = described({"halting probability", r.halt_p});
    }
  };
  const at::Tensor hidden =
      model.hidden(ids.to(model.parameters().device()), {.n_loops = n_loops, .observer = &observer});
  if (bad_loop == 0) return fmt::format("weights are finite; the forward pass is not in or before loop 1: {}", what);
  if (bad_loop > 0)
    return fmt::format("weights are finite; the forward pass is not from loop {} on: {}", bad_loop + 1, what);
  if (!finite_all(hidden)) {
    return fmt::format("weights and all loops are finite; after the coda the forward pass is not: {}",
                       described({"hidden state", hidden}));
  }
  if (const std::string gradient = among(model.parameters().named_gradients()); !gradient.empty()) {
    return "weights and hidden states are finite; the first gradient that is not is " + gradient;
  }
  return "weights, hidden states and gradients are each finite: a sum over them, the loss or the gradient's norm, "
         "overflowed";
}

Error gave_up(int64_t step, int64_t rollbacks, const std::string& diagnosis, const std::filesystem::path& checkpoint) {
  return failure(
      fmt::format("step {} is still not finite after going back {} times: {}. {}", step, rollbacks, diagnosis,
                  checkpoint.empty() ? "No checkpoint was written yet"
                                     : fmt::format("The checkpoint {} is intact", checkpoint.string())),
      "start again with a lower train.lr and --force; the run goes on from its last checkpoint");
}

}  // namespace mythos
