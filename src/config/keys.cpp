#include "config/keys.h"

#include "base/units.h"
#include "config/key_tables.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace mythos {

const std::vector<KeySpec>& config_keys() {
  static const std::vector<KeySpec> keys = [] {
    std::vector<KeySpec> all;
    for (const auto& part :
         {key_tables::model_keys(), key_tables::input_keys(), key_tables::train_keys(), key_tables::output_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return keys;
}

std::vector<std::string> config_sections() {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) {
    if (names.empty() || names.back() != key.section) names.emplace_back(key.section);
  }
  return names;
}

const KeySpec* find_key(std::string_view section, std::string_view name) {
  for (const auto& key : config_keys()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

namespace {

const KeySpec* find_also(std::string_view section, std::string_view name) {
  for (const auto& key : config_keys()) {
    if (key.section == section && std::find(key.also.begin(), key.also.end(), name) != key.also.end()) return &key;
  }
  return nullptr;
}

// The key of a section whose own name or other name is nearest to `name`, if any is near.
const KeySpec* nearest_key(std::string_view section, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& key : config_keys()) {
    if (key.section != section) continue;
    names.emplace_back(key.name);
    names.insert(names.end(), key.also.begin(), key.also.end());
  }
  const std::string near = nearest_name(name, names);
  if (near.empty()) return nullptr;
  const KeySpec* key = find_key(section, near);
  return key != nullptr ? key : find_also(section, near);
}

std::string did_you_mean(std::string_view section, const KeySpec& key) {
  if (key.section == section) return fmt::format("did you mean '{}'?", key.name);
  return fmt::format("did you mean '{}' in [{}]?", key.name, key.section);
}

}  // namespace

std::string key_hint(std::string_view section, std::string_view name) {
  std::vector<std::string> sections = config_sections();
  // A key of just this name elsewhere, then what others call it, then spelling: here first, then elsewhere.
  std::vector<std::string> homes;
  for (const auto& key : config_keys()) {
    if (key.name == name) homes.push_back(fmt::format("[{}]", key.section));
  }
  if (const KeySpec* key = find_also(section, name)) return did_you_mean(section, *key);
  if (!homes.empty()) return fmt::format("this key belongs to {}", fmt::join(homes, " or "));
  if (const KeySpec* key = nearest_key(section, name)) return did_you_mean(section, *key);
  for (const auto& other : sections) {
    if (const KeySpec* key = find_also(other, name)) return did_you_mean(section, *key);
  }
  for (const auto& other : sections) {
    if (const KeySpec* key = nearest_key(other, name)) return did_you_mean(section, *key);
  }
  std::vector<std::string> known;
  for (const auto& key : config_keys()) {
    if (key.section == section) known.emplace_back(key.name);
  }
  if (known.empty()) return fmt::format("sections are {}", fmt::join(sections, ", "));
  return fmt::format("[{}] has {}", section, fmt::join(known, ", "));
}

namespace {

template <typename T>
bool holds(const KeySpec& key) {
  return std::holds_alternative<T& (*)(RunConfig&)>(key.place);
}
bool is_whole(const KeySpec& key) {
  return holds<int64_t>(key) || holds<std::vector<int64_t>>(key) || holds<std::optional<int64_t>>(key);
}

std::string limit(const KeySpec& key, double value) {
  if (is_whole(key) || (value >= 1e4 && value < 1e15)) return with_commas(static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

std::string range(const KeySpec& key) {
  if (key.low == key.high) return fmt::format("{}", limit(key, key.low));
  if (std::isinf(key.high)) return fmt::format("of at least {}", limit(key, key.low));
  if (key.above_low) return fmt::format("above {} and at most {}", limit(key, key.low), limit(key, key.high));
  if (key.below_high) return fmt::format("of at least {} and below {}", limit(key, key.low), limit(key, key.high));
  return fmt::format("from {} to {}", limit(key, key.low), limit(key, key.high));
}

bool in_range(const KeySpec& key, double x) {
  if (!std::isfinite(x)) return false;
  return (key.above_low ? x > key.low : x >= key.low) && (key.below_high ? x < key.high : x <= key.high);
}

constexpr size_t most_choices = 64;

}  // namespace

std::string allowed(const KeySpec& key) {
  if (!key.choices.empty()) {
    std::vector<std::string> quoted;
    for (const auto& choice : key.choices) quoted.push_back(toml_string(choice));
    return fmt::format("one of {}", fmt::join(quoted, ", "));
  }
  switch (key.form) {
    case Form::tokens:
      return fmt::format("a whole number {}, also written like 1e6", range(key));
    case Form::auto_count:
      return fmt::format("a whole number {}, or \"auto\"", range(key));
    case Form::loops:
      return fmt::format("a whole number {}, or {{choices = [..]}} with 1 to {} of them", range(key), most_choices);
    case Form::pair:
      return fmt::format("a list of two numbers {}", range(key));
    case Form::texts:
      return "a text or a list of texts, none of them empty";
    case Form::text_list:
      return "a list of texts";
    case Form::plain:
      break;
  }
  if (holds<bool>(key)) return "true or false";
  if (holds<std::string>(key)) return "a text";
  if (holds<std::vector<double>>(key)) return fmt::format("a list of numbers {}", range(key));
  return fmt::format("{} {}", is_whole(key) ? "a whole number" : "a number", range(key));
}

namespace {

// Reads one value of a key; each function returns whether the value was acceptable and stored.
class Reader {
 public:
  Reader(const KeySpec& key, const Value& value) : key_(key), value_(value) {}

  bool operator()(bool& place) const {
    const bool* b = value_.as<bool>();
    if (b != nullptr) place = *b;
    return b != nullptr;
  }

  bool operator()(int64_t& place) const {
    if (key_.form == Form::auto_count) {
      const auto* text = value_.as<std::string>();
      if (text != nullptr && *text == "auto") return (place = 0, true);
    }
    return whole(value_, place);
  }

  bool operator()(std::optional<int64_t>& place) const {
    int64_t n = 0;
    if (!whole(value_, n)) return false;
    place = n;
    return true;
  }

  bool operator()(double& place) const { return number(value_, place); }

  bool operator()(std::string& place) const {
    const auto* text = value_.as<std::string>();
    if (text == nullptr || !clean(*text)) return false;
    if (!key_.choices.empty() && std::find(key_.choices.begin(), key_.choices.end(), *text) == key_.choices.end()) {
      return false;
    }
    place = *text;
    return true;
  }

  bool operator()(AttentionType& place) const {
    std::string text;
    if (!(*this)(text)) return false;
    place = text == "mla" ? AttentionType::mla : AttentionType::gqa;
    return true;
  }

  bool operator()(std::vector<std::string>& place) const {
    std::vector<std::string> out;
    if (const auto* text = value_.as<std::string>(); text != nullptr && key_.form == Form::texts) {
      out.push_back(*text);
    } else if (const auto* list = value_.as<Value::List>()) {
      for (const auto& element : *list) {
        const auto* one = element.as<std::string>();
        if (one == nullptr) return false;
        out.push_back(*one);
      }
    } else {
      return false;
    }
    if (key_.form == Form::texts) {
      for (const auto& one : out) {
        if (one.empty() || !clean(one)) return false;
      }
    }
    place = std::move(out);
    return true;
  }

  bool operator()(std::vector<double>& place) const {
    const auto* list = value_.as<Value::List>();
    if (list == nullptr || (key_.form == Form::pair && list->size() != 2)) return false;
    std::vector<double> out;
    for (const auto& element : *list) {
      if (!number(element, out.emplace_back())) return false;
    }
    place = std::move(out);
    return true;
  }

  bool operator()(std::vector<int64_t>& place) const {
    const Value* from = &value_;
    if (const auto* table = value_.as<Value::Table>()) {
      if (table->size() != 1 || table->front().first != "choices") return false;
      from = &table->front().second;
      if (from->as<Value::List>() == nullptr) return false;
    } else if (value_.as<Value::List>() != nullptr) {
      return false;
    }
    std::vector<int64_t> out;
    if (const auto* list = from->as<Value::List>()) {
      if (list->empty() || list->size() > most_choices) return false;
      for (const auto& element : *list) {
        if (!whole(element, out.emplace_back())) return false;
      }
    } else if (!whole(*from, out.emplace_back())) {
      return false;
    }
    place = std::move(out);
    return true;
  }

 private:
  // No path, name or command has a NUL in it: whatever the system would make of it, it is not what was written.
  static bool clean(const std::string& text) { return text.find('\0') == std::string::npos; }

  bool whole(const Value& value, int64_t& place) const {
    int64_t n = 0;
    if (const auto* i = value.as<int64_t>()) {
      n = *i;
    } else if (const auto* x = value.as<double>();
               x != nullptr && key_.form == Form::tokens && std::abs(*x) <= 0x1p53 && std::floor(*x) == *x) {
      n = static_cast<int64_t>(*x);
    } else {
      return false;
    }
    if (!in_range(key_, static_cast<double>(n))) return false;
    place = n;
    return true;
  }

  bool number(const Value& value, double& place) const {
    double x = 0;
    if (const auto* d = value.as<double>()) {
      x = *d;
    } else if (const auto* i = value.as<int64_t>()) {
      x = static_cast<double>(*i);
    } else {
      return false;
    }
    if (!in_range(key_, x)) return false;
    place = x;
    return true;
  }

  const KeySpec& key_;
  const Value& value_;
};

}  // namespace

std::string store(const KeySpec& key, const Value& value, RunConfig& config) {
  const bool stored = std::visit([&](const auto& place) { return Reader(key, value)(place(config)); }, key.place);
  if (stored) return "";
  std::string why = fmt::format("is {}, it must be {}", describe(value), allowed(key));
  if (const auto* text = value.as<std::string>(); text != nullptr && !key.choices.empty()) {
    const std::string near = nearest_name(*text, std::vector<std::string>(key.choices.begin(), key.choices.end()));
    if (!near.empty()) why += fmt::format("; did you mean \"{}\"?", near);
  }
  if (const auto* x = value.as<double>();
      x != nullptr && is_whole(key) && std::abs(*x) < 0x1p53 && std::floor(*x) == *x && in_range(key, *x)) {
    why += fmt::format("; write {}", static_cast<int64_t>(*x));
  }
  return why;
}

namespace {

class Writer {
 public:
  explicit Writer(const KeySpec& key) : key_(key) {}

  std::string operator()(bool b) const { return b ? "true" : "false"; }
  std::string operator()(int64_t n) const {
    return key_.form == Form::auto_count && n == 0 ? toml_string("auto") : fmt::format("{}", n);
  }
  std::string operator()(double x) const { return toml_number(x); }
  std::string operator()(const std::string& text) const { return toml_string(text); }
  std::string operator()(const std::optional<int64_t>& n) const { return n ? fmt::format("{}", *n) : ""; }
  std::string operator()(AttentionType type) const { return toml_string(to_string(type)); }
  std::string operator()(const std::vector<std::string>& texts) const {
    if (key_.form == Form::texts && texts.size() == 1) return toml_string(texts[0]);
    return list(texts, toml_string);
  }
  std::string operator()(const std::vector<double>& numbers) const { return list(numbers, toml_number); }
  std::string operator()(const std::vector<int64_t>& numbers) const {
    if (numbers.empty()) return "";
    if (numbers.size() == 1) return fmt::format("{}", numbers[0]);
    return fmt::format("{{choices = [{}]}}", fmt::join(numbers, ", "));
  }

 private:
  template <typename T, typename F>
  static std::string list(const std::vector<T>& values, const F& write) {
    std::vector<std::string> parts;
    for (const auto& value : values) parts.push_back(write(value));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }

  const KeySpec& key_;
};

}  // namespace

std::string written(const KeySpec& key, const RunConfig& config) {
  // The places give access for writing; reading through them leaves the configuration as it is.
  auto& readable = const_cast<RunConfig&>(config);
  return std::visit([&](const auto& place) { return Writer(key)(place(readable)); }, key.place);
}

std::string keys_markdown() {
  std::string out;
  std::string_view section;
  const RunConfig defaults;
  for (const auto& key : config_keys()) {
    if (key.section != section) {
      out += fmt::format("{}### [{}]\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                         section.empty() ? "" : "\n", key.section);
      section = key.section;
    }
    const std::string fallback =
        key.default_note.empty() ? fmt::format("`{}`", written(key, defaults)) : std::string(key.default_note);
    std::string value = allowed(key);
    if (key.low == key.high && key.low == 0 && holds<double>(key)) value = "only 0";
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, value, fallback, key.meaning);
  }
  return out;
}

}  // namespace mythos
