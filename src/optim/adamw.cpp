#include "optim/adamw.h"

#include "kernels/part.h"

#include <ATen/ops/_fused_adamw.h>

#include <cmath>

namespace mythos {

double gradient_norm(const ParameterStore& store) {
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
  return std::sqrt(sum);
}

AdamW::AdamW(ParameterStore& store, AdamWOptions options) : store_(store), options_(options) {
  for (size_t u = 0; u < store.units(); ++u) {
    first_.push_back(at::zeros_like(store.values(u)));
    second_.push_back(at::zeros_like(store.values(u)));
  }
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
    const auto& unit = store_.layout().units[u];
    const int64_t cut = options_.decay_vectors ? unit.size : unit.matrices_end;
    for (const auto& [begin, end, decay] :
         {std::tuple{int64_t{0}, cut, options_.weight_decay}, {cut, unit.size, 0.0}}) {
      if (begin == end) continue;
      const auto range = [b = begin, e = end](const at::Tensor& flat) { return flat.narrow(0, b, e - b); };
      at::_fused_adamw_({range(store_.values(u))}, {range(gradients)}, {range(first_[u])}, {range(second_[u])}, {},
                        {at::full({}, static_cast<double>(steps_), scalar)}, lr, options_.beta1, options_.beta2, decay,
                        options_.eps, false, false, divisor, std::nullopt);
    }
  }
  store_.refresh_compute();
}

void AdamW::reset() {
  for (auto* moments : {&first_, &second_}) {
    for (at::Tensor& t : *moments) t.zero_();
  }
  steps_ = 0;
}

}  // namespace mythos
