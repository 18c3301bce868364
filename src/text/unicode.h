// UTF-8 steps and the character classes that splitting rules ask for (Unicode 16.0, as tiktoken's regex engine has it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// What the o200k rule tells apart. `other` is everything else: punctuation, symbols, controls, unassigned code points,
/// and every byte that is not part of valid UTF-8.
enum class CharClass : uint8_t {
  other = 0,
  upper = 1,   ///< Lu, Lt
  lower = 2,   ///< Ll
  letter = 3,  ///< Lm, Lo: neither or both cases
  mark = 4,    ///< M
  number = 5,  ///< N
  space = 6,   ///< White_Space without the two below
  newline = 7  ///< CR, LF
};

struct Utf8Step {
  uint32_t code;  ///< the code point; `invalid_code` for a byte that starts no valid sequence
  uint32_t size;  ///< bytes taken: 1 to 4; 1 for an invalid byte
};
constexpr uint32_t invalid_code = 0xFFFFFFFF;

/// Decodes one code point at `p` (p < end), strictly: overlong forms, surrogates, values above U+10FFFF and cut
/// sequences are invalid, one byte at a time.
inline Utf8Step utf8_step(const unsigned char* p, const unsigned char* end) {
  const uint32_t a = p[0];
  if (a < 0x80) return {a, 1};
  const auto left = end - p;
  const auto tail = [p](int i) { return (p[i] & 0xC0) == 0x80; };
  if (a < 0xC2) return {invalid_code, 1};
  if (a < 0xE0) {
    if (left >= 2 && tail(1)) return {(a & 0x1F) << 6 | (p[1] & 0x3Fu), 2};
  } else if (a < 0xF0) {
    if (left >= 3 && tail(1) && tail(2)) {
      const uint32_t code = (a & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
      if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {code, 3};
    }
  } else if (a < 0xF5) {
    if (left >= 4 && tail(1) && tail(2) && tail(3)) {
      const uint32_t code = (a & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
      if (code >= 0x10000 && code <= 0x10FFFF) return {code, 4};
    }
  }
  return {invalid_code, 1};
}

/// Appends a code point's UTF-8 form (any value up to U+10FFFF; a surrogate gets its three-byte form).
void append_utf8(std::string& out, uint32_t code);

/// The bytes of U+FFFD, the replacement character.
constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// Two-stage table of classes; about 40 KiB, built once and then read only.
class CharClasses {
 public:
  CharClasses();

  [[nodiscard]] CharClass of(uint32_t code) const {
    if (code > 0x10FFFF) return CharClass::other;
    return blocks_[size_t{block_of_[code >> 8]} << 8 | (code & 0xFF)];
  }
  [[nodiscard]] CharClass of_ascii(unsigned char c) const { return blocks_[c]; }

 private:
  std::array<uint16_t, 0x1100> block_of_{};
  std::vector<CharClass> blocks_;  // block 0 is code points 0 to 255
};

}  // namespace mythos
