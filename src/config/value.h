// A TOML file as a plain tree: what the configuration reader works on. Nothing else here sees the TOML library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mythos {

/// One TOML value and the line where it stands (from 1).
struct Value {
  using List = std::vector<Value>;
  using Table = std::vector<std::pair<std::string, Value>>;  ///< in the order of the file
  struct Date {};                                            ///< dates and times: no key takes one

  std::variant<bool, int64_t, double, std::string, List, Table, Date> data = false;
  int line = 0;

  template <typename T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&data);
  }
};

/// Parses TOML 1.0 text; a byte order mark and CRLF line ends are accepted. Throws usage Error beginning with `name`
/// and the line for: more than 1 MB, broken syntax, invalid UTF-8, control characters, a key given twice, numbers that
/// do not fit 64 bits, values nested deeper than 16, keys of more than 16 parts.
Value parse_toml(std::string_view text, std::string_view name);

/// One value written in TOML ("3", "[1, 2]", "{choices = [4, 8]}"); nothing if `text` is not exactly that.
std::optional<Value> parse_toml_value(std::string_view text);

/// The value as a person may recognise it, with its kind, on one line and shortened: `the text "abc"`, `the list [1,
/// 2]`.
std::string describe(const Value& value);

/// A TOML basic string with its quotes; control characters escaped.
std::string toml_string(std::string_view text);
/// A TOML float that reads back bit for bit ("0.0006", "1.0", "1e-08", "inf").
std::string toml_number(double value);

}  // namespace mythos
