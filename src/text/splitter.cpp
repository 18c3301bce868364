#include "text/splitter.h"

namespace mythos {

const std::string_view o200k_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Sets of classes, as bits.
constexpr unsigned bit(CharClass c) { return 1u << static_cast<unsigned>(c); }
constexpr unsigned upper_set =
    bit(CharClass::upper) | bit(CharClass::letter) | bit(CharClass::mark);  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
constexpr unsigned lower_set =
    bit(CharClass::lower) | bit(CharClass::letter) | bit(CharClass::mark);     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
constexpr unsigned symbol_set = bit(CharClass::other) | bit(CharClass::mark);  // [^\s\p{L}\p{N}]
constexpr unsigned space_set = bit(CharClass::space) | bit(CharClass::newline);

constexpr bool in(CharClass c, unsigned set) { return (bit(c) & set) != 0; }

// (?i:'s|'t|'re|'ve|'m|'ll|'d)? at p. Case folding makes U+017F an s, as it does in Unicode regular expressions.
const unsigned char* contraction(const unsigned char* p, const unsigned char* end) {
  if (end - p < 2 || *p != '\'') return p;
  const auto lower = [](unsigned char c) { return static_cast<unsigned char>(c | 0x20); };
  switch (lower(p[1])) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return end - p >= 3 && lower(p[2]) == 'e' ? p + 3 : p;
    case 'l':
      return end - p >= 3 && lower(p[2]) == 'l' ? p + 3 : p;
    default:
      return end - p >= 3 && p[1] == 0xC5 && p[2] == 0xBF ? p + 3 : p;
  }
}

}  // namespace

struct O200kSplitter::Cursor {
  const CharClasses& classes;
  const unsigned char* end;

  struct Char {
    CharClass cls;
    uint32_t size;
  };
  // The character at p, p < end.
  Char at(const unsigned char* p) const {
    if (*p < 0x80) return {classes.of_ascii(*p), 1};
    const Utf8Step s = utf8_step(p, end);
    return {classes.of(s.code), s.size};
  }
  bool is(const unsigned char* p, unsigned set) const { return p < end && in(at(p).cls, set); }

  // Past all characters of `set` from p on.
  const unsigned char* skip(const unsigned char* p, unsigned set) const {
    while (p < end) {
      const Char c = at(p);
      if (!in(c.cls, set)) break;
      p += c.size;
    }
    return p;
  }

  // The first two alternatives without their optional prefix, at p: upper_set* lower_set+ or upper_set+ lower_set*,
  // then a contraction. Null if there is no letter. The greedy run of upper_set may have to give back: then the word
  // ends with the last character of the run that is in both sets.
  const unsigned char* word(const unsigned char* p) const {
    const unsigned char* q = p;
    const unsigned char* last_in_both = nullptr;  // the end of that character
    while (q < end) {
      const Char c = at(q);
      if (!in(c.cls, upper_set)) break;
      q += c.size;
      if (c.cls != CharClass::upper) last_in_both = q;
    }
    if (q < end && in(at(q).cls, lower_set)) return contraction(skip(q, lower_set), end);
    if (last_in_both != nullptr) return last_in_both == q ? contraction(q, end) : last_in_both;
    return q > p ? contraction(q, end) : nullptr;
  }
};

size_t O200kSplitter::next_of_any(std::string_view text, size_t begin) const {
  const auto* const base = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* const p = base + begin;
  const Cursor cursor{classes_, base + text.size()};
  const unsigned char* const end = cursor.end;
  const auto offset = [base](const unsigned char* q) { return static_cast<size_t>(q - base); };

  const Cursor::Char first = cursor.at(p);
  const unsigned char* const second = p + first.size;

  if (first.cls == CharClass::other || first.cls == CharClass::space) {
    // One character that is neither letter, number nor line end may lead a word.
    if (cursor.is(second, upper_set | lower_set)) return offset(cursor.word(second));
  } else if (first.cls == CharClass::number) {
    const unsigned char* q = second;
    for (int n = 1; n < 3 && cursor.is(q, bit(CharClass::number)); ++n) q += cursor.at(q).size;
    return offset(q);
  } else if (first.cls != CharClass::newline) {
    // A mark may lead a word as well, but it is in both sets, which comes to the same.
    return offset(cursor.word(p));
  }

  if (first.cls == CharClass::other || (*p == ' ' && cursor.is(second, symbol_set))) {
    const unsigned char* q = cursor.skip(second, symbol_set);
    while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) ++q;
    return offset(q);
  }

  // White space: up to its last line end; without one all of it at the end of the text, else all but the last
  // character (which leads the next piece), else that one character.
  const unsigned char* q = p;
  const unsigned char* before_last = p;
  const unsigned char* after_line_end = nullptr;
  while (q < end) {
    const Cursor::Char c = cursor.at(q);
    if (!in(c.cls, space_set)) break;
    before_last = q;
    q += c.size;
    if (c.cls == CharClass::newline) after_line_end = q;
  }
  if (after_line_end != nullptr) return offset(after_line_end);
  if (q == end || before_last == p) return offset(q);
  return offset(before_last);
}

}  // namespace mythos
