#include "infer/sampling.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mythos {

void check(const SamplingOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature)) {
    throw usage_error(
        fmt::format("temperature is {}, it must be a number of at least 0 (0: most likely token)", o.temperature));
  }
  if (o.top_k < 0) throw usage_error(fmt::format("top-k is {}, it must be at least 0 (0: all tokens)", o.top_k));
  if (!(o.top_p >= 0 && o.top_p <= 1))
    throw usage_error(fmt::format("top-p is {}, it must be between 0 and 1", o.top_p));
}

int64_t sample(std::span<const float> logits, const SamplingOptions& o, Random& random) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      throw failure(fmt::format("the model's logit of token {} is not a number", i), "its weights are damaged");
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || !std::isfinite(logits[best])) {
    throw failure("no token has a finite logit", "the model's weights are damaged");
  }
  if (o.temperature == 0 || o.top_k == 1 || o.top_p == 0) return static_cast<int64_t>(best);

  const auto before = [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  const size_t k = o.top_k == 0 ? order.size() : std::min(order.size(), static_cast<size_t>(o.top_k));
  if (k < order.size()) {
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(), before);
    order.resize(k);
  }
  std::sort(order.begin(), order.end(), before);

  // Differences to the best logit are at most 0, so no temperature overflows; unlikely tokens go to 0.
  std::vector<double> weight(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    weight[i] = std::exp((static_cast<double>(logits[order[i]]) - static_cast<double>(logits[best])) / o.temperature);
    sum += weight[i];
  }
  size_t kept = k;
  if (o.top_p < 1) {
    double reached = 0;
    for (kept = 0; kept < k && reached < o.top_p * sum;) reached += weight[kept++];
    kept = std::max<size_t>(kept, 1);
    sum = std::accumulate(weight.begin(), weight.begin() + static_cast<ptrdiff_t>(kept), 0.0);
  }
  double left = random.uniform() * sum;
  size_t chosen = 0;
  for (size_t i = 0; i < kept && left >= 0; ++i) {
    if (weight[i] == 0) break;  // they fall: the others are impossible, whatever rounding left over
    left -= weight[i];
    chosen = i;
  }
  return order[chosen];
}

}  // namespace mythos
