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

namespace {

// The k largest, by falling logit and rising index. A heap of the k best so far: nearly all others fail one comparison.
std::vector<uint32_t> largest(std::span<const float> logits, size_t k) {
  const auto before = [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::vector<uint32_t> heap(k);
  std::iota(heap.begin(), heap.end(), 0U);
  std::make_heap(heap.begin(), heap.end(), before);  // the worst of them on top
  for (size_t i = k; i < logits.size(); ++i) {
    if (!(logits[i] > logits[heap.front()])) continue;
    std::pop_heap(heap.begin(), heap.end(), before);
    heap.back() = static_cast<uint32_t>(i);
    std::push_heap(heap.begin(), heap.end(), before);
  }
  std::sort_heap(heap.begin(), heap.end(), before);
  return heap;
}

}  // namespace

int64_t sample(std::span<const float> logits, const SamplingOptions& o, Random& random) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      throw failure(fmt::format("the model's logit of token {} is not a number", i), "its weights are damaged");
    }
    if (logits[i] > logits[best]) best = i;
  }
  // -infinity: a token that is not among those to be chosen from.
  if (logits.empty() || !std::isfinite(logits[best])) {
    throw failure("no token has a finite logit", "the model's weights are damaged");
  }
  if (o.temperature == 0 || o.top_k == 1 || o.top_p == 0) return static_cast<int64_t>(best);

  // Differences to the best logit are at most 0, so no temperature overflows; unlikely tokens go to 0.
  const auto weight = [&](size_t i) {
    return std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[best])) / o.temperature);
  };
  const size_t n = logits.size();
  const size_t k = o.top_k == 0 ? n : std::min(n, static_cast<size_t>(o.top_k));
  std::vector<uint32_t> order;  // candidates; all of them in their own order where nothing is cut
  std::vector<double> weights;
  double sum = 0;
  const auto take = [&](std::vector<uint32_t> candidates) {
    order = std::move(candidates);
    weights.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) weights[i] = weight(order[i]);
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  };
  if (k < n) {
    sum = take(largest(logits, k));
  } else {
    std::vector<uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0U);
    sum = take(std::move(all));
    // As many of the likeliest as hold top_p of everything: mostly few, so they are not sorted all.
    double reached = 0;
    for (size_t c = std::min<size_t>(n, 256); o.top_p < 1 && reached < o.top_p * sum; c = std::min(n, 8 * c)) {
      reached = take(largest(logits, c));
      if (c == n) break;
    }
  }
  if (o.top_p < 1) {
    size_t kept = 0;
    double reached = 0;
    while (kept < order.size() && reached < o.top_p * sum) reached += weights[kept++];
    order.resize(std::max<size_t>(kept, 1));
    sum = std::accumulate(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(order.size()), 0.0);
  }
  double left = random.uniform() * sum;
  size_t chosen = best;
  for (size_t i = 0; i < order.size() && left >= 0; ++i) {
    if (weights[i] == 0) continue;  // impossible, whatever rounding left over
    left -= weights[i];
    chosen = order[i];
  }
  return static_cast<int64_t>(chosen);
}

}  // namespace mythos
