// Standard errors of means whose observations are not independent.
#pragma once

#include <optional>
#include <span>

namespace mythos {

/// Standard error of the ratio sum(y) / sum(x), where y[g] and x[g] are the sums of cluster g: observations of one
/// cluster may depend on each other in any way, clusters do not. It is linearised (Taylor):
/// sqrt(G / (G - 1) * sum((y - r x)^2)) / sum(x). Nothing for fewer than two clusters. Clusters with x = 0 are left
/// out. Tokens of a document depend on each other, so that the error taken as if they did not is too small, often by
/// half and more (Cameron and Miller, 2015, "A Practitioner's Guide to Cluster-Robust Inference").
std::optional<double> ratio_error(std::span<const double> y, std::span<const double> x);

/// Standard error of a share of n independent observations: sqrt(p (1 - p) / (n - 1)). Nothing for fewer than two.
std::optional<double> share_error(double share, double n);

}  // namespace mythos
