// One string out of a line of JSON, without building the whole value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// Finds a top-level string of a JSON object (RFC 8259). The whole line is checked. What differs from a strict reader:
/// bytes that are not UTF-8 are kept as they are, and a lone surrogate escape becomes U+FFFD. Of equal keys the last
/// counts. Nesting above 512 levels is refused; nothing here recurses.
class JsonLine {
 public:
  enum class Result {
    text,     ///< the value is a string: text()
    null,     ///< the value is null
    missing,  ///< an object without that key
    damaged,  ///< not a JSON object, or the value is neither string nor null: why()
  };

  /// `line` must outlive text(). Collects the object's first 100 keys if `keys` is given.
  Result find(std::string_view line, std::string_view key, std::vector<std::string>* keys = nullptr);
  /// Into the line itself where it has no escapes.
  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  Result parse(std::string_view key, std::vector<std::string>* keys);
  bool string(std::string_view& value, std::string& scratch);
  bool skip_value();
  bool scalar();
  bool number();
  void blanks();
  bool take(char c);
  bool fail(const char* what);

  const char* p_ = nullptr;
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  std::string_view text_;
  std::string scratch_;
  std::string key_scratch_;
  std::string spare_;
  std::string why_;
  std::string open_;  // the brackets we are inside of
};

}  // namespace mythos
