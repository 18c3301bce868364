#include "plan/entry.h"

#include "base/error.h"
#include "base/units.h"

#include <algorithm>

namespace mythos {

Entry::Entry(const Value& value, std::string what, bool partial)
    : table_(value.as<Value::Table>()), what_(std::move(what)), line_(value.line), partial_(partial) {
  if (table_ == nullptr) throw usage_error(fmt::format("{}: {} is no table", place(line_), describe(value)));
}

std::string Entry::place(int line) const { return line > 0 ? fmt::format("{} (line {})", what_, line) : what_; }

const Value* Entry::find(const std::string& key, bool needed) {
  known_.push_back(key);
  for (const auto& [name, value] : *table_) {
    if (name == key) return &value;
  }
  if (needed && !partial_) {
    throw usage_error(fmt::format("{} has no field '{}'", place(line_), key), "docs/plan.md lists the fields");
  }
  return nullptr;
}

const Value* Entry::value(const std::string& key) { return find(key, false); }

std::optional<std::string> Entry::text(const std::string& key, bool needed) {
  const Value* const found = find(key, needed);
  if (found == nullptr) return std::nullopt;
  const auto* const s = found->as<std::string>();
  if (s == nullptr)
    throw usage_error(fmt::format("{}: {} must be a text, not {}", place(found->line), key, describe(*found)));
  return *s;
}

std::optional<bool> Entry::flag(const std::string& key) {
  const Value* const found = find(key, true);
  if (found == nullptr) return std::nullopt;
  const auto* const b = found->as<bool>();
  if (b == nullptr)
    throw usage_error(fmt::format("{}: {} must be true or false, not {}", place(found->line), key, describe(*found)));
  return *b;
}

std::optional<double> Entry::number(const std::string& key, double low, double high, bool needed) {
  const Value* const found = find(key, needed);
  if (found == nullptr) return std::nullopt;
  double x = 0;
  if (const auto* const n = found->as<int64_t>()) {
    x = static_cast<double>(*n);
  } else if (const auto* const f = found->as<double>()) {
    x = *f;
  } else {
    throw usage_error(fmt::format("{}: {} must be a number, not {}", place(found->line), key, describe(*found)));
  }
  if (!(x >= low && x <= high)) {
    throw usage_error(fmt::format("{}: {} is {}, it must be {:g} to {:g}", place(found->line), key, x, low, high));
  }
  return x;
}

void Entry::done() const {
  for (const auto& [name, value] : *table_) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      throw usage_error(fmt::format("{}: there is no field '{}'", place(value.line), name), suggestion(name, known_));
    }
  }
}

std::vector<const Value*> entries(const Value::Table& root, const std::string& key, const std::string& name) {
  std::vector<const Value*> out;
  for (const auto& [k, value] : root) {
    if (k != key) continue;
    const auto* const list = value.as<Value::List>();
    if (list == nullptr) {
      throw usage_error(
          fmt::format("{} line {}: entries are written [[{}]], each with its fields below", name, value.line, key));
    }
    for (const Value& v : *list) out.push_back(&v);
  }
  return out;
}

std::string entry_name(const Value& value, const std::string& key, const std::string& name) {
  Entry entry(value, fmt::format("{}: a [[{}]]", name, key));
  const std::string found = *entry.text("name");
  if (found.empty() || found.size() > 80)
    throw usage_error(fmt::format("{}: its name must have 1 to 80 letters", entry.place(value.line)));
  return found;
}

}  // namespace mythos
