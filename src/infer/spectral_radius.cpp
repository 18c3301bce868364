#include "infer/spectral_radius.h"

#include "base/error.h"
#include "model/model.h"

#include <algorithm>
#include <cmath>

namespace mythos {

SpectralRadius spectral_radius(const std::vector<double>& values) {
  SpectralRadius r;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  r.min = *low;
  r.max = *high;
  const int n = r.max > r.min ? SpectralRadius::bins : 1;
  for (int i = 0; i < n; ++i) r.edges.push_back(r.min + (r.max - r.min) * i / n);
  r.edges.push_back(r.max);
  r.counts.assign(static_cast<size_t>(n), 0);
  for (const double v : values) {
    const double place = r.max > r.min ? (v - r.min) / (r.max - r.min) * n : 0;
    ++r.counts[std::min(static_cast<size_t>(place), static_cast<size_t>(n) - 1)];
  }
  return r;
}

SpectralRadius spectral_radius(const Model& model) {
  const at::Tensor a = model.injection_decay_values().to(at::kCPU, at::kDouble).contiguous();
  const double* const first = a.const_data_ptr<double>();
  const std::vector<double> values(first, first + a.numel());
  if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
    throw failure("rho(A), by which the loop keeps its state, is not a number", "the model's weights are damaged");
  }
  return spectral_radius(values);
}

Json histogram_json(const SpectralRadius& radius) { return {{"edges", radius.edges}, {"counts", radius.counts}}; }

}  // namespace mythos
