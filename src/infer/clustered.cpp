#include "infer/clustered.h"

#include <cmath>

namespace mythos {

std::optional<double> ratio_error(std::span<const double> y, std::span<const double> x) {
  double sum_y = 0, sum_x = 0, clusters = 0;
  for (size_t g = 0; g < x.size(); ++g) {
    if (x[g] == 0) continue;
    sum_y += y[g];
    sum_x += x[g];
    ++clusters;
  }
  if (clusters < 2) return std::nullopt;
  const double ratio = sum_y / sum_x;
  double squares = 0;
  for (size_t g = 0; g < x.size(); ++g) {
    const double residual = x[g] == 0 ? 0 : y[g] - ratio * x[g];
    squares += residual * residual;
  }
  return std::sqrt(clusters / (clusters - 1) * squares) / sum_x;
}

std::optional<double> share_error(double share, double n) {
  if (n < 2) return std::nullopt;
  return std::sqrt(share * (1 - share) / (n - 1));
}

}  // namespace mythos
