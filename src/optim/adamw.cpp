#include "optim/adamw.h"

#include "kernels/part.h"

#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace mythos {

double squared_gradient_norm(const ParameterStore& store) {
  const PartScope scope(Part::optimizer);
  constexpr int64_t block = int64_t{1} << 16;  // longer fp32 sums lose digits
  double sum = 0;
  at::Tensor on_device;
  for (size_t u = 0; u < store.units(); ++u) {
    const at::Tensor g = store.gradients(u);
    if (!g.device().is_cpu()) {
      const at::Tensor norm = at::linalg_vector_norm(g).to(at::kDouble);
      on_device = on_device.defined() ? on_device + norm.square() : norm.square();
      continue;
    }
    for (int64_t begin = 0; begin < g.numel(); begin += block) {
      const at::Tensor piece = g.narrow(0, begin, std::min(block, g.numel() - begin));
      sum += at::dot(piece, piece).to(at::kDouble).item<double>();
    }
  }
  if (on_device.defined()) sum += on_device.item<double>();
  return sum;
}

double gradient_norm(const ParameterStore& store) { return std::sqrt(squared_gradient_norm(store)); }

AdamW::AdamW(ParameterStore& store, AdamWOptions options) : store_(store), options_(options) {
  for (size_t u = 0; u < store.units(); ++u) {
    first_.push_back(at::zeros_like(store.values(u)));
    second_.push_back(at::zeros_like(store.values(u)));
  }
  set_ranges();
}

void AdamW::set_lags(std::vector<int64_t> lags) {
  const size_t n = store_.layout().parameters.size();
  TORCH_CHECK(lags.empty() || lags.size() == n, lags.size(), " lags for ", n, " parameters");
  lags_ = std::move(lags);
  if (std::all_of(lags_.begin(), lags_.end(), [](int64_t lag) { return lag == 0; })) lags_.clear();
  set_ranges();
}

// Two ranges a unit, cut where parameters of different lags meet. What pads the buffer goes with what is before it.
void AdamW::set_ranges() {
  const FlatLayout& layout = store_.layout();
  ranges_.assign(store_.units(), {});
  std::vector<std::vector<std::pair<int64_t, int64_t>>> lag_from(store_.units());  // offset, lag
  for (size_t i = 0; i < lags_.size(); ++i) {
    lag_from[static_cast<size_t>(layout.places[i].unit)].emplace_back(layout.places[i].offset, lags_[i]);
  }
  for (size_t u = 0; u < store_.units(); ++u) {
    const auto& unit = layout.units[u];
    std::sort(lag_from[u].begin(), lag_from[u].end());
    const int64_t cut = options_.decay_vectors ? unit.size : unit.matrices_end;
    for (const auto& [begin, end, decay] :
         {std::tuple{int64_t{0}, cut, options_.weight_decay}, {cut, unit.size, 0.0}}) {
      if (begin == end) continue;
      ranges_[u].push_back({begin, end, decay, 0});
      for (const auto& [offset, lag] : lag_from[u]) {
        if (offset < begin || offset >= end || lag == ranges_[u].back().lag) continue;
        Range next{offset, end, decay, lag};
        if (offset == begin) ranges_[u].pop_back();
        if (offset > begin) ranges_[u].back().end = offset;
        ranges_[u].push_back(next);
      }
    }
    const int64_t own = store_.own_begin(u);
    std::erase_if(ranges_[u], [&](Range& r) {
      r.begin = std::max<int64_t>(r.begin - own, 0);
      r.end = std::min(r.end - own, store_.shard(u));
      return r.begin >= r.end;
    });
  }
}

std::vector<NamedTensor> AdamW::named(const std::vector<at::Tensor>& flat) const {
  TORCH_CHECK(store_.partition().parts == 1, "the moments are shared out");
  return store_.named(flat);
}

void AdamW::step(double lr, double gradient_divisor) {
  const PartScope scope(Part::optimizer);
  const at::NoGradGuard no_grad;
  ++steps_;
  const auto scalar = at::TensorOptions(store_.device()).dtype(at::kFloat);
  // The kernel takes its divisor in fp32; an fp64 model is scaled exactly beforehand.
  const bool exact = store_.master_dtype() == at::kDouble;
  std::optional<at::Tensor> divisor;
  if (!exact) divisor = at::full({}, gradient_divisor, scalar);
  for (size_t u = 0; u < store_.units(); ++u) {
    at::Tensor gradients = store_.gradients(u);
    if (exact && gradient_divisor != 1.0) gradients.div_(gradient_divisor);
    for (const Range& r : ranges_[u]) {
      const auto range = [&r](const at::Tensor& flat) { return flat.narrow(0, r.begin, r.end - r.begin); };
      at::_fused_adamw_({range(store_.values(u))}, {range(gradients)}, {range(first_[u])}, {range(second_[u])}, {},
                        {at::full({}, static_cast<double>(steps_ - r.lag), scalar)}, lr, options_.beta1, options_.beta2,
                        r.decay, options_.eps, false, false, divisor, std::nullopt);
    }
  }
  store_.refresh_compute();
}

void AdamW::set_moments(size_t parameter, const at::Tensor& first, const at::Tensor& second) {
  store_.set_part(first_, parameter, first);
  store_.set_part(second_, parameter, second);
}

void AdamW::reset() {
  for (auto* moments : {&first_, &second_}) {
    for (at::Tensor& t : *moments) t.zero_();
  }
  steps_ = 0;
  set_lags({});
}

}  // namespace mythos
