#include "config/value.h"

#include "base/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

// Bounds the parser's own recursion. The library is header-only and included here alone.
#define TOML_MAX_NESTED_VALUES 16
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#include <toml++/toml.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace mythos {

namespace {

constexpr size_t max_text = size_t{1} << 20;
constexpr int max_key_parts = 16;

// Follows TOML's strings and comments just far enough to find keys with very many dotted parts: each part becomes a
// table inside a table, and the library frees those by recursion. Returns the line of the first such key, or 0.
int line_of_endless_key(std::string_view text) {
  int line = 1;
  int parts = 0;
  size_t i = 0;
  const auto at = [&](std::string_view what) { return text.substr(i, what.size()) == what; };
  while (i < text.size()) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      parts = 0;
      ++i;
    } else if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      const std::string_view triple = c == '"' ? "\"\"\"" : "'''";
      const bool long_string = at(triple);
      i += long_string ? 3 : 1;
      while (i < text.size()) {
        if (text[i] == '\n') {
          if (!long_string) break;  // an unfinished string: the library says so
          ++line;
        }
        if (c == '"' && text[i] == '\\') {
          ++i;
          if (i < text.size() && text[i] != '\n') ++i;
          continue;
        }
        if (long_string ? at(triple) : text[i] == c) {
          i += long_string ? 3 : 1;
          // A long string may end in one or two quotes of its own.
          for (int extra = 0; long_string && extra < 2 && i < text.size() && text[i] == c; ++extra) ++i;
          break;
        }
        ++i;
      }
    } else {
      if (c == '.') {
        if (++parts >= max_key_parts) return line;
      } else if (c == '=' || c == ',' || c == '[' || c == ']' || c == '{' || c == '}') {
        parts = 0;
      }
      ++i;
    }
  }
  return 0;
}

std::string_view line_text(std::string_view text, int line) {
  size_t begin = 0;
  for (int i = 1; i < line; ++i) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return {};
    begin = end + 1;
  }
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Printable and short; bytes that are not ASCII are left out, so that a cut never splits a character.
std::string shown(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= limit) return out + "...";
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

Value convert(const toml::node& node) {
  Value value;
  value.line = static_cast<int>(node.source().begin.line);
  if (const auto* b = node.as_boolean()) {
    value.data = b->get();
  } else if (const auto* n = node.as_integer()) {
    value.data = n->get();
  } else if (const auto* x = node.as_floating_point()) {
    value.data = x->get();
  } else if (const auto* s = node.as_string()) {
    value.data = s->get();
  } else if (const auto* list = node.as_array()) {
    Value::List out;
    out.reserve(list->size());
    for (const auto& element : *list) out.push_back(convert(element));
    value.data = std::move(out);
  } else if (const auto* table = node.as_table()) {
    Value::Table out;
    for (const auto& [key, element] : *table) {
      Value converted = convert(element);
      // The key's own line: a value may begin further down, a table has that of its header.
      converted.line = static_cast<int>(key.source().begin.line);
      out.emplace_back(std::string(key.str()), std::move(converted));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& left, const auto& right) { return left.second.line < right.second.line; });
    value.data = std::move(out);
  } else {
    value.data = Value::Date{};
  }
  return value;
}

}  // namespace

Value parse_toml(std::string_view text, std::string_view name) {
  if (text.size() > max_text) {
    throw usage_error(fmt::format("{} has {} bytes, a configuration has at most {}", name, text.size(), max_text));
  }
  if (const int line = line_of_endless_key(text); line != 0) {
    throw usage_error(fmt::format("{} line {}: a key has more than {} dotted parts", name, line, max_key_parts));
  }
  try {
    return convert(toml::parse(text, name));
  } catch (const toml::parse_error& e) {
    const int line = static_cast<int>(e.source().begin.line);
    std::string source = shown(line_text(text, line), 80);
    throw usage_error(fmt::format("{} line {}: {}", name, line, shown(e.description(), 300)),
                      source.empty() ? "" : fmt::format("the line is: {}", source));
  }
}

std::optional<Value> parse_toml_value(std::string_view text) {
  try {
    Value parsed = parse_toml(fmt::format("value = {}\n", text), "value");
    auto& table = std::get<Value::Table>(parsed.data);
    if (table.size() != 1 || table[0].first != "value") return std::nullopt;
    Value value = std::move(table[0].second);
    value.line = 0;
    return value;
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

std::string plain(const Value& value, int depth) {
  constexpr size_t shown_elements = 6;
  if (const auto* b = value.as<bool>()) return *b ? "true" : "false";
  if (const auto* n = value.as<int64_t>()) return fmt::format("{}", *n);
  if (const auto* x = value.as<double>()) return toml_number(*x);
  if (const auto* s = value.as<std::string>()) return fmt::format("\"{}\"", shown(*s, 60));
  if (value.as<Value::Date>() != nullptr) return "a date";
  if (depth > 1) return "...";
  std::vector<std::string> parts;
  const auto full = [&] { return parts.size() == shown_elements && (parts.emplace_back("..."), true); };
  if (const auto* list = value.as<Value::List>()) {
    for (const auto& element : *list) {
      if (full()) break;
      parts.push_back(plain(element, depth + 1));
    }
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  for (const auto& [key, element] : std::get<Value::Table>(value.data)) {
    if (full()) break;
    parts.push_back(fmt::format("{} = {}", shown(key, 40), plain(element, depth + 1)));
  }
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

}  // namespace

std::string describe(const Value& value) {
  const char* kind = "";
  if (value.as<std::string>() != nullptr) kind = "the text ";
  if (value.as<Value::List>() != nullptr) kind = "the list ";
  if (value.as<Value::Table>() != nullptr) kind = "the table ";
  return kind + plain(value, 0);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_number(double value) {
  std::string out = fmt::format("{}", value);
  if (std::isfinite(value) && out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace mythos
