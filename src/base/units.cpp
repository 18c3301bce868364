#include "base/units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace mythos {

std::string with_commas(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

namespace {
std::string scaled(double value, std::string_view unit) {
  if (!std::isfinite(value)) return "unknown";
  static constexpr std::array<std::string_view, 7> prefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t p = 0;
  double v = std::abs(value);
  while (v >= 999.5 && p + 1 < prefixes.size()) {
    v /= 1000;
    ++p;
  }
  if (value < 0) v = -v;
  const int decimals = p == 0 ? (std::floor(v) == v ? 0 : 2) : std::abs(v) < 9.995 ? 2 : std::abs(v) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}{}", v, decimals, prefixes[p], unit);
}
}  // namespace

std::string bytes_text(double bytes) { return scaled(bytes, "B"); }

std::string si_text(double value) { return scaled(value, ""); }

std::string duration_text(double seconds) {
  if (!(seconds < 1e12)) return "unknown";
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s < 90) return fmt::format("{} s", s);
  if (s < 5400) return fmt::format("{} min", (s + 30) / 60);
  if (s < 86400) return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
  return fmt::format("{}d {}h", s / 86400, s % 86400 / 3600);
}

namespace {
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}
}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  name = name.substr(0, 200);
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const auto& c : candidates) {
    const size_t d = edit_distance(name, c);
    if (d < best_distance) {
      best_distance = d;
      best = c;
    }
  }
  const size_t longer = std::max(name.size(), best.size());
  if (best_distance <= std::max<size_t>(2, longer / 3) && best_distance < longer) return best;
  // A name cut short ("warmup" for "warmup_steps") is far by letters and near for a person.
  const auto begins = [&](const std::string& c) { return name.size() >= 3 && c.starts_with(name); };
  const auto it = std::find_if(candidates.begin(), candidates.end(), begins);
  return it == candidates.end() ? "" : *it;
}

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest_name(name, candidates);
  if (!near.empty()) return fmt::format("did you mean '{}'?", near);
  return fmt::format("known: {}", fmt::join(candidates, ", "));
}

}  // namespace mythos
