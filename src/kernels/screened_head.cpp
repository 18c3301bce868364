#include "kernels/screened_head.h"

#include "kernels/cpu/screen.h"
#include "kernels/product.h"
#include "kernels/weight.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <queue>

namespace mythos {
namespace {

// Relative error of a sum of k products in float, in any order, and of what is done with the estimate.
double rounding(int64_t k) { return static_cast<double>(k + 32) * 0x1p-24 * 1.01; }

// Lengths of vectors whose products and steps neither overflow nor lose digits below the normal floats. A norm comes
// before the head, so a model's are near the square root of D; what is outside gets all its logits.
constexpr double most_weights = 0x1p80, least_hidden = 0x1p-40, most_hidden = 0x1p40;
// Longer rows would make the relative error below no small number.
constexpr int64_t most_columns = 65536;

struct QuantisedHidden {
  std::vector<int16_t> q;
  double scale = 0, length = 0, error = 0;  // of the row, and of what its quantised form leaves

  [[nodiscard]] bool usable() const { return length >= least_hidden && length <= most_hidden; }
};

QuantisedHidden quantise(const float* h, int64_t k) {
  QuantisedHidden out;
  out.q.resize(static_cast<size_t>(k));
  double most = 0, length = 0, error = 0;
  for (int64_t i = 0; i < k; ++i) {
    const double value = h[i];
    most = std::max(most, std::abs(value));
    length += value * value;
  }
  out.length = std::sqrt(length) * (1 + 1e-9);
  if (!out.usable()) return out;
  out.scale = most / static_cast<double>(cpu::screen_range(k));
  for (int64_t i = 0; i < k; ++i) {
    const double q = std::nearbyint(h[i] / out.scale), left = h[i] - q * out.scale;
    out.q[static_cast<size_t>(i)] = static_cast<int16_t>(q);
    error += left * left;
  }
  out.error = std::sqrt(error) * (1 + 1e-9);
  return out;
}

// Which of n tokens can be among the `wanted` largest, by what they are at most and at least; nothing where that is too
// many to be worth it. The others' `top` becomes -infinity.
std::optional<std::vector<int64_t>> likely(float* top, const float* bottom, int64_t n, int64_t wanted) {
  // The k-th largest of what logits are at least.
  std::priority_queue<float, std::vector<float>, std::greater<>> best;
  for (int64_t j = 0; j < n; ++j) {
    if (static_cast<int64_t>(best.size()) == wanted && !(bottom[j] > best.top())) continue;
    if (static_cast<int64_t>(best.size()) == wanted) best.pop();
    best.push(bottom[j]);
  }
  const float least = best.top();
  std::vector<int64_t> chosen;
  for (int64_t j = 0; j < n; ++j) {
    if (top[j] >= least) {
      chosen.push_back(j);
    } else {
      top[j] = -std::numeric_limits<float>::infinity();
    }
  }
  if (std::ssize(chosen) > wanted + n / 8) return std::nullopt;
  return chosen;
}

}  // namespace

ScreenedHead::ScreenedHead(const at::Tensor& weight)
    : weight_(weight), quantised_(at::empty(weight.sizes(), at::kChar)), bounds_(static_cast<size_t>(weight.size(0))) {
  TORCH_CHECK(weight.dim() == 2 && weight.device().is_cpu() && weight.is_contiguous() &&
                  (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16),
              "a head to screen is a matrix of float or bfloat16 on the CPU");
  const int64_t k = weight.size(1);
  std::atomic<bool> usable = k <= most_columns;
  auto* const q = static_cast<int8_t*>(quantised_.mutable_data_ptr());
  for_row_chunks(weight.size(0), k, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // of this thread
    const at::Tensor rows = of_type(weight_.narrow(0, begin, end - begin), at::kFloat);
    for (int64_t j = begin; j < end; ++j) {
      const auto row = cpu::quantise_row(k, rows.const_data_ptr<float>() + (j - begin) * k, q + j * k);
      if (!(static_cast<double>(row.whole) <= most_weights)) usable = false;
      // What float sums round is as large as the vectors may make it.
      const double rounded = rounding(k) * (static_cast<double>(row.whole) + static_cast<double>(row.length));
      bounds_[static_cast<size_t>(j)] = {
          row.scale, static_cast<float>((static_cast<double>(row.error) + rounded) * (1 + 1e-6)), row.length};
    }
  });
  usable_ = usable;
}

double ScreenedHead::bytes_per_token(int64_t vocabulary, int64_t dim) {
  return static_cast<double>(vocabulary) * (static_cast<double>(dim) + sizeof(Bound));
}

void ScreenedHead::exact(const at::Tensor& hidden, int64_t row, const at::Tensor& logits, int64_t first,
                         int64_t count) const {
  multiply_few_rows(logits, hidden, weight_, {row, 1}, {first, count});
}

at::Tensor ScreenedHead::largest_logits(const at::Tensor& hidden, int64_t k) const {
  const at::Tensor h = hidden.contiguous();
  const int64_t rows = h.size(0), dim = h.size(1), vocabulary = weight_.size(0);
  std::vector<QuantisedHidden> quantised;
  std::vector<int16_t> x;
  for (int64_t r = 0; r < rows; ++r) {
    quantised.push_back(quantise(h.const_data_ptr<float>() + r * dim, dim));
    x.insert(x.end(), quantised.back().q.begin(), quantised.back().q.end());
  }
  // Estimates and their bounds, row by row of hidden; logits are written over them.
  at::Tensor products = at::empty({rows, vocabulary}, at::kInt);
  at::Tensor logits = at::empty({rows, vocabulary}, at::kFloat), lower = at::empty({rows, vocabulary}, at::kFloat);
  auto* const sums = products.mutable_data_ptr<int32_t>();
  const auto* const w = static_cast<const int8_t*>(quantised_.const_data_ptr());
  for_row_chunks(vocabulary, dim, [&](int64_t begin, int64_t end) {
    cpu::screen_rows(rows, dim, x.data(), end - begin, w + begin * dim, sums + begin, vocabulary);
    for (int64_t r = 0; r < rows; ++r) {
      const auto scale = static_cast<float>(quantised[static_cast<size_t>(r)].scale);
      const auto length = static_cast<float>(quantised[static_cast<size_t>(r)].length * (1 + 1e-6));
      const auto error = static_cast<float>(quantised[static_cast<size_t>(r)].error * (1 + 1e-6));
      float* const top = logits.mutable_data_ptr<float>() + r * vocabulary;
      float* const bottom = lower.mutable_data_ptr<float>() + r * vocabulary;
      for (int64_t j = begin; j < end; ++j) {
        const Bound& b = bounds_[static_cast<size_t>(j)];
        const float estimate = static_cast<float>(sums[r * vocabulary + j]) * (b.scale * scale);
        const float bound = b.error * length + b.length * error + 1e-30F;
        top[j] = estimate + bound;
        bottom[j] = estimate - bound;
      }
    }
  });
  const int64_t wanted = std::clamp<int64_t>(k, 1, vocabulary);
  std::atomic<int64_t> candidates = 0;
  at::parallel_for(0, rows, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      float* const top = logits.mutable_data_ptr<float>() + r * vocabulary;
      const float* const bottom = lower.const_data_ptr<float>() + r * vocabulary;
      std::optional<std::vector<int64_t>> chosen;
      if (quantised[static_cast<size_t>(r)].usable()) chosen = likely(top, bottom, vocabulary, wanted);
      if (chosen) {
        for (const int64_t j : *chosen) exact(h, r, logits, j, 1);
      } else {
        for_row_chunks(vocabulary, dim, [&](int64_t begin, int64_t end) { exact(h, r, logits, begin, end - begin); });
      }
      candidates += chosen ? std::ssize(*chosen) : vocabulary;
    }
  });
  candidates_ = candidates;
  return logits;
}

}  // namespace mythos
