// How strongly the loop keeps its state: A of h = A h + B e + u, over channels.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <vector>

namespace mythos {

class Model;

struct SpectralRadius {
  /// Within it training of the reference was stable.
  static constexpr double low = 0.0001, high = 0.999;
  static constexpr int bins = 10;

  double max = 0, min = 0;
  std::vector<double> edges;    ///< of equal bins from min to max, one more than counts; of equal values two alike
  std::vector<int64_t> counts;  ///< channels by bin; the last one holds its upper edge

  [[nodiscard]] bool within() const { return max <= high && min >= low; }
};

/// Throws Error where A is not a number.
SpectralRadius spectral_radius(const Model& model);
/// Of values that are finite and at least one.
SpectralRadius spectral_radius(const std::vector<double>& values);

/// {"edges": [..], "counts": [..]}
Json histogram_json(const SpectralRadius& radius);

}  // namespace mythos
