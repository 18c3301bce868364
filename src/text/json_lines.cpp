#include "text/json_lines.h"

#include <charconv>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"

namespace mythos {

namespace {

constexpr size_t max_depth = 512;

// A JSON reader that keeps one string and walks over the rest.
class Reader {
 public:
  Reader(std::string_view line, std::string_view key) : text_(line), key_(key) {}

  std::string read() {
    skip_space();
    if (!take('{')) throw error("expected a JSON object");
    std::string value;
    std::string name;
    bool found = false;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        name.clear();
        read_string(&name);
        skip_space();
        if (!take(':')) throw error("expected ':'");
        skip_space();
        if (name == key_) {
          if (peek() != '"') throw error(fmt::format("\"{}\" is not a string", key_));
          value.clear();
          read_string(&value);
          found = true;
        } else {
          skip_value();
        }
        skip_space();
      } while (take(','));
      if (!take('}')) throw error("expected ',' or '}'");
    }
    skip_space();
    if (at_ < text_.size()) throw error("more after the JSON object");
    if (!found) throw failure(fmt::format("the JSON object has no \"{}\"", key_));
    return value;
  }

 private:
  [[nodiscard]] Error error(const std::string& what) const {
    return failure(fmt::format("not valid JSON at byte {}: {}", at_, what));
  }
  [[nodiscard]] int peek() const { return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : -1; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  // A string at the cursor, appended to `out` unless that is null.
  void read_string(std::string* out) {
    if (!take('"')) throw error("expected a string");
    while (true) {
      size_t end = at_;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
             static_cast<unsigned char>(text_[end]) >= 0x20) {
        ++end;
      }
      if (out != nullptr) out->append(text_.substr(at_, end - at_));
      at_ = end;
      if (at_ == text_.size()) throw error("the string does not end");
      if (take('"')) return;
      if (!take('\\')) throw error("a control character inside a string");
      const uint32_t code = read_escape();
      if (out != nullptr) append_utf8(*out, code);
    }
  }

  // What follows a backslash.
  uint32_t read_escape() {
    const int c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        return static_cast<uint32_t>(c);
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        break;
      default:
        --at_;
        throw error("unknown escape");
    }
    constexpr uint32_t replacement = 0xFFFD;
    const uint32_t first = read_hex(at_);
    at_ += 4;
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || text_.substr(at_, 2) != "\\u") return replacement;
    const uint32_t second = read_hex(at_ + 2);
    if (second < 0xDC00 || second > 0xDFFF) return replacement;  // it stands for itself
    at_ += 6;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }
  uint32_t read_hex(size_t where) const {
    const std::string_view digits = where < text_.size() ? text_.substr(where, 4) : std::string_view();
    uint32_t value = 0;
    const char* const last = digits.data() + digits.size();
    if (digits.size() != 4 || std::from_chars(digits.data(), last, value, 16).ptr != last) {
      throw error("\\u needs four hexadecimal digits");
    }
    return value;
  }

  void skip_value() {
    std::vector<char> open;  // brackets to close
    while (true) {
      skip_space();
      const int c = peek();
      if (c == '{' || c == '[') {
        if (open.size() == max_depth) throw error("nested too deeply");
        ++at_;
        open.push_back(static_cast<char>(c));
        skip_space();
        if (!take(closer(open.back()))) {
          if (c == '{') skip_name();
          continue;
        }
        open.pop_back();
      } else if (c == '"') {
        read_string(nullptr);
      } else {
        skip_scalar();
      }
      // A value is complete: what may follow depends on what it is in.
      while (true) {
        if (open.empty()) return;
        skip_space();
        if (take(',')) {
          if (open.back() == '{') skip_name();
          break;
        }
        if (!take(closer(open.back()))) throw error("expected ',' or a closing bracket");
        open.pop_back();
      }
    }
  }
  static char closer(char bracket) { return bracket == '{' ? '}' : ']'; }
  void skip_name() {
    skip_space();
    read_string(nullptr);
    skip_space();
    if (!take(':')) throw error("expected ':'");
  }

  void skip_scalar() {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return;
      }
    }
    const auto digits = [this] {
      const size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) throw error("expected a value");
    };
    take('-');
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
  }

  std::string_view text_;
  std::string_view key_;
  size_t at_ = 0;
};

}  // namespace

std::string json_text_field(std::string_view line, std::string_view key) { return Reader(line, key).read(); }

}  // namespace mythos
