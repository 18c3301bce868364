#include "config/problems.h"

#include "base/error.h"
#include "base/units.h"

#include <algorithm>

namespace mythos {

namespace {
std::string sentence_and_hint(std::string sentence, std::string_view hint) {
  return hint.empty() ? std::move(sentence) : fmt::format("{} ({})", sentence, hint);
}
}  // namespace

std::string describe_name(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, 60)) out += c >= ' ' && c <= '~' ? c : '?';
  return name.size() > 60 ? out + "..." : out;
}

void Problems::add(const Origin& origin, std::string sentence, std::string_view hint) {
  problems_.push_back({origin, sentence_and_hint(std::move(sentence), hint)});
}

void Problems::add_bad(const std::string& key, std::string sentence, std::string_view hint) {
  bad_.insert(key);
  add(origins_[key], std::move(sentence), hint);
}

void Problems::add_among(const std::vector<std::string>& keys, std::string sentence, std::string_view hint) {
  for (const auto& key : keys) {
    if (const auto found = origins_.find(key); found != origins_.end()) {
      add(found->second, std::move(sentence), hint);
      return;
    }
  }
  add({}, std::move(sentence), hint);
}

bool Problems::sound(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const auto& key) { return bad_.contains(key); });
}

void Problems::throw_if_any(std::string_view name) const {
  if (problems_.empty()) return;
  std::vector<Problem> sorted = problems_;
  const auto place = [](const Problem& p) { return p.origin.line > 0 ? p.origin.line : INT32_MAX; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  const auto line = [](const Problem& p) {
    if (p.origin.line > 0) return fmt::format("line {}: {}", p.origin.line, p.text);
    return p.origin.option.empty() ? p.text : fmt::format("{}: {}", p.origin.option, p.text);
  };
  if (sorted.size() == 1) throw usage_error(fmt::format("{} {}", name, line(sorted[0])));
  std::string text = fmt::format("{} has {} problems", name, sorted.size());
  for (size_t i = 0; i < std::min(sorted.size(), most_told); ++i) text += "\n  " + line(sorted[i]);
  if (sorted.size() > most_told) text += fmt::format("\n  and {} more", sorted.size() - most_told);
  throw usage_error(text);
}

}  // namespace mythos
