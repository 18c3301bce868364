#include "data/json_line.h"

#include <fmt/format.h>

#include <cstdint>

namespace mythos {
namespace {

constexpr size_t max_depth = 512;
constexpr size_t max_keys = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 63));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

// Four hex digits at p, or -1.
int32_t hex4(const char* p, const char* end) {
  if (end - p < 4) return -1;
  int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = p[i];
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

bool is_high(int32_t c) { return c >= 0xD800 && c < 0xDC00; }
bool is_low(int32_t c) { return c >= 0xDC00 && c < 0xE000; }

}  // namespace

bool JsonLine::fail(const char* what) {
  if (why_.empty()) why_ = fmt::format("{} at byte {}", what, p_ - begin_);
  return false;
}

void JsonLine::blanks() {
  while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r' || *p_ == '\n')) ++p_;
}

bool JsonLine::take(char c) {
  if (p_ == end_ || *p_ != c) return false;
  ++p_;
  return true;
}

bool JsonLine::string(std::string_view& value, std::string& scratch) {
  if (!take('"')) return fail(p_ == end_ ? "it ends in the middle" : "a string is expected");
  const char* first = p_;
  while (p_ < end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) ++p_;
  if (p_ < end_ && *p_ == '"') {
    value = {first, static_cast<size_t>(p_++ - first)};
    return true;
  }
  scratch.assign(first, p_);
  while (p_ < end_) {
    const char c = *p_;
    if (c == '"') {
      ++p_;
      value = scratch;
      return true;
    }
    if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
    if (c != '\\') {
      const char* run = p_;
      while (p_ < end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) ++p_;
      scratch.append(run, p_);
      continue;
    }
    if (end_ - p_ < 2) break;
    switch (p_[1]) {
      case '"':
        scratch += '"';
        break;
      case '\\':
        scratch += '\\';
        break;
      case '/':
        scratch += '/';
        break;
      case 'b':
        scratch += '\b';
        break;
      case 'f':
        scratch += '\f';
        break;
      case 'n':
        scratch += '\n';
        break;
      case 'r':
        scratch += '\r';
        break;
      case 't':
        scratch += '\t';
        break;
      case 'u': {
        int32_t code = hex4(p_ + 2, end_);
        if (code < 0) return fail("a broken \\u escape");
        p_ += 4;
        if (is_high(code) && end_ - p_ >= 8 && p_[2] == '\\' && p_[3] == 'u' && is_low(hex4(p_ + 4, end_))) {
          code = 0x10000 + ((code - 0xD800) << 10) + (hex4(p_ + 4, end_) - 0xDC00);
          p_ += 6;
        } else if (is_high(code) || is_low(code)) {
          code = 0xFFFD;
        }
        append_utf8(scratch, static_cast<uint32_t>(code));
        break;
      }
      default:
        return fail("an unknown escape");
    }
    p_ += 2;
  }
  return fail("a string without its end");
}

bool JsonLine::number() {
  take('-');
  if (!take('0')) {
    if (p_ == end_ || !is_digit(*p_)) return fail("no JSON value");
    while (p_ < end_ && is_digit(*p_)) ++p_;
  }
  if (take('.')) {
    if (p_ == end_ || !is_digit(*p_)) return fail("a broken number");
    while (p_ < end_ && is_digit(*p_)) ++p_;
  }
  if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
    ++p_;
    if (!take('+')) take('-');
    if (p_ == end_ || !is_digit(*p_)) return fail("a broken number");
    while (p_ < end_ && is_digit(*p_)) ++p_;
  }
  return true;
}

bool JsonLine::scalar() {
  std::string_view ignored;
  if (p_ < end_ && *p_ == '"') return string(ignored, spare_);
  const std::string_view rest(p_, static_cast<size_t>(end_ - p_));
  // NaN and Infinity are not JSON, but Python's json writes them.
  for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
    if (rest.starts_with(word)) {
      p_ += word.size();
      return true;
    }
  }
  return number();
}

// Any value. What is open is kept in a string of brackets, so depth costs a byte, not a stack frame.
bool JsonLine::skip_value() {
  open_.clear();
  std::string_view ignored;
  for (;;) {
    blanks();
    bool opened = false;
    if (p_ < end_ && (*p_ == '{' || *p_ == '[')) {
      if (open_.size() == max_depth) return fail("nesting too deep");
      open_ += *p_++;
      opened = true;
    } else if (!scalar()) {
      return false;
    }
    // Behind a value (or just inside a bracket): close what ends here, until the next value is due.
    for (;;) {
      if (open_.empty()) return true;
      blanks();
      const bool object = open_.back() == '{';
      if (take(object ? '}' : ']')) {
        open_.pop_back();
        opened = false;
        continue;
      }
      if (!opened && !take(',')) return fail("a comma or a closing bracket is expected");
      if (object) {
        blanks();
        if (!string(ignored, spare_)) return false;
        blanks();
        if (!take(':')) return fail("a colon is expected");
      }
      break;
    }
  }
}

JsonLine::Result JsonLine::find(std::string_view line, std::string_view key, std::vector<std::string>* keys) {
  p_ = begin_ = line.data();
  end_ = p_ + line.size();
  text_ = {};
  why_.clear();
  return parse(key, keys);
}

JsonLine::Result JsonLine::parse(std::string_view key, std::vector<std::string>* keys) {
  const auto damaged = [this](const char* what) {
    fail(what);
    return Result::damaged;
  };
  Result result = Result::missing;
  blanks();
  if (!take('{')) return damaged("no JSON object");
  blanks();
  bool closed = take('}');
  while (!closed) {
    blanks();
    std::string_view name;
    if (!string(name, key_scratch_)) return Result::damaged;
    const bool wanted = name == key;
    if (keys != nullptr && keys->size() < max_keys) keys->emplace_back(name);
    blanks();
    if (!take(':')) return damaged("a colon is expected");
    blanks();
    if (wanted) {
      if (p_ < end_ && *p_ == '"') {
        if (!string(text_, scratch_)) return Result::damaged;
        result = Result::text;
      } else if (std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with("null")) {
        p_ += 4;
        result = Result::null;
      } else {
        return damaged("the column is not a string");
      }
    } else if (!skip_value()) {
      return Result::damaged;
    }
    blanks();
    closed = take('}');
    if (!closed && !take(',')) return damaged(p_ == end_ ? "it ends in the middle" : "a comma is expected");
  }
  blanks();
  if (p_ != end_) return damaged("more text behind the object");
  return result;
}

}  // namespace mythos
