#include "optim/adamw.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"

#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace mythos {

namespace {

// Whether the device's kernels update buffers like these.
bool kernels_take(const at::Tensor& flat) { return cuda::applies(flat) && flat.scalar_type() != at::kBFloat16; }

// Parts of the squared norm, where the kernels take the gradients.
at::Tensor squares(const ParameterStore& store) {
  std::vector<at::Tensor> all;
  for (size_t u = 0; u < store.units(); ++u) all.push_back(store.gradients(u));
  return cuda::sum_of_squares(all);
}

}  // namespace

double squared_gradient_norm(const ParameterStore& store) {
  const PartScope scope(Part::optimizer);
  if (store.units() > 0 && kernels_take(store.gradients(0))) return cuda::sum_in_order(squares(store)).item<double>();
  constexpr int64_t block = int64_t{1} << 16;  // longer fp32 sums lose digits
  double sum = 0;
  for (size_t u = 0; u < store.units(); ++u) {
    const at::Tensor g = store.gradients(u);
    for (int64_t begin = 0; begin < g.numel(); begin += block) {
      const at::Tensor piece = g.narrow(0, begin, std::min(block, g.numel() - begin));
      sum += at::dot(piece, piece).to(at::kDouble).item<double>();
    }
  }
  return sum;
}

double gradient_norm(const ParameterStore& store) { return std::sqrt(squared_gradient_norm(store)); }

double gradient_divisor(double norm, double clip) { return clip > 0 ? std::max(1.0, (norm + 1e-6) / clip) : 1.0; }

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
  ++steps_;
  update(lr, gradient_divisor, {});
}

AdamW::Clipped AdamW::clipped_step(double lr, double clip, const at::Tensor& loss) {
  TORCH_CHECK(store_.partition().parts == 1, "the gradients are shared out");
  Clipped result;
  if (!kernels_take(store_.values(0))) {
    {
      const PartScope scope(Part::waiting);
      result.loss = loss.item<double>();
    }
    result.norm = gradient_norm(store_);
    result.updated = std::isfinite(result.loss) && std::isfinite(result.norm);
    if (result.updated) step(lr, gradient_divisor(result.norm, clip));
    return result;
  }
  at::Tensor verdict;
  {
    const PartScope scope(Part::optimizer);
    verdict = cuda::judge_step(squares(store_), loss, clip);
    ++steps_;
    update(lr, 1, verdict);
  }
  const PartScope scope(Part::waiting);  // a GPU ends its work here
  const at::Tensor read = verdict.cpu();
  const auto* numbers = read.const_data_ptr<double>();
  result = {.loss = numbers[0], .norm = numbers[1], .updated = numbers[3] != 0};
  if (!result.updated) --steps_;
  return result;
}

// The update number steps_.
void AdamW::update(double lr, double gradient_divisor, const at::Tensor& verdict) {
  const at::NoGradGuard no_grad;
  const auto scalar = at::TensorOptions(store_.device()).dtype(at::kFloat);
  // The kernel takes its divisor in fp32; an fp64 model is scaled exactly beforehand.
  const bool exact = store_.master_dtype() == at::kDouble;
  std::optional<at::Tensor> divisor;
  if (!exact) divisor = at::full({}, gradient_divisor, scalar);
  for (size_t u = 0; u < store_.units(); ++u) {
    if (kernels_take(store_.values(u))) {
      update_on_device(u, lr, gradient_divisor, verdict);
      continue;
    }
    at::Tensor gradients = store_.gradients(u);
    if (exact && gradient_divisor != 1.0) gradients.div_(gradient_divisor);
    for (const Range& r : ranges_[u]) {
      const auto range = [&r](const at::Tensor& flat) { return flat.narrow(0, r.begin, r.end - r.begin); };
      at::_fused_adamw_({range(store_.values(u))}, {range(gradients)}, {range(first_[u])}, {range(second_[u])}, {},
                        {at::full({}, static_cast<double>(steps_ - r.lag), scalar)}, lr, options_.beta1, options_.beta2,
                        r.decay, options_.eps, false, false, divisor, std::nullopt);
    }
    store_.refresh_compute(u);
  }
}

void AdamW::update_on_device(size_t unit, double lr, double gradient_divisor, const at::Tensor& verdict) {
  const at::Tensor copy = store_.narrow_copy(unit);
  for (const Range& r : ranges_[unit]) {
    const auto range = [&r](const at::Tensor& flat) {
      return flat.defined() ? flat.narrow(0, r.begin, r.end - r.begin) : flat;
    };
    cuda::adamw_update({.value = range(store_.values(unit)),
                        .gradient = range(store_.gradients(unit)),
                        .first = range(first_[unit]),
                        .second = range(second_[unit]),
                        .copy = range(copy)},
                       {.lr = lr,
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .eps = options_.eps,
                        .decay = r.decay,
                        .step = static_cast<double>(steps_ - r.lag),
                        .divisor = gradient_divisor},
                       verdict);
  }
  if (!copy.defined()) store_.refresh_compute(unit);
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
