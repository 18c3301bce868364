// Cutting text into the pieces within which byte pairs merge.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "text/unicode.h"

namespace mythos {

/// The o200k_base rule as a regular expression; O200kSplitter gives exactly its matches.
extern const std::string_view o200k_pattern;

/// A hand-written form of the o200k rule. Linear time for any bytes; no allocation; the pieces cover the whole text.
/// A byte that is not part of valid UTF-8 counts as a symbol by itself.
class O200kSplitter {
 public:
  /// The end of the piece that starts at `begin`; text.size() > begin.
  [[nodiscard]] size_t next(std::string_view text, size_t begin) const {
    const size_t size = ascii_word(text, begin);
    return size > 0 ? begin + size : next_of_any(text, begin);
  }

 private:
  struct Cursor;
  /// The size of a piece that is a plain ASCII word of up to 15 bytes, its leading character among them; 0 if it is
  /// not, or if one cannot tell from 16 bytes. Most pieces of most texts are such words.
  [[nodiscard]] static size_t ascii_word(std::string_view text, size_t begin);
  [[nodiscard]] size_t next_of_any(std::string_view text, size_t begin) const;
  CharClasses classes_;
};

inline size_t O200kSplitter::ascii_word([[maybe_unused]] std::string_view text, [[maybe_unused]] size_t begin) {
#ifdef __SSE2__
  if (text.size() - begin < 16) return 0;
  const char* const p = text.data() + begin;
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  // A bit for each byte between `first` and `first` + 25: as signed numbers, these become the 26 lowest.
  const auto letters = [bytes](char first) {
    const __m128i moved = _mm_add_epi8(bytes, _mm_set1_epi8(static_cast<char>(-128 - first)));
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_cmplt_epi8(moved, _mm_set1_epi8(-128 + 26))));
  };
  const unsigned lower = letters('a');
  const unsigned upper = letters('A');
  const unsigned lead = ((lower | upper) & 1) ^ 1;
  const auto upper_end = lead + static_cast<unsigned>(std::countr_one(upper >> lead));
  const auto end = upper_end + static_cast<unsigned>(std::countr_one(lower >> upper_end));
  if (end == lead || end >= 16) return 0;
  // What may be part of the word after all: letters beyond ASCII, contractions. What does not lead a word: numbers,
  // line ends, and characters beyond ASCII may be such.
  const auto after = static_cast<unsigned char>(p[end]);
  if (after >= 0x80 || after == '\'') return 0;
  if (lead == 1) {
    const auto first = static_cast<unsigned char>(p[0]);
    if (first >= 0x80 || first == '\n' || first == '\r' || (first >= '0' && first <= '9')) return 0;
  }
  return end;
#else
  return 0;
#endif
}

/// Any other rule, run by PCRE2. Matches are pieces; what lies between matches is a piece, too, and so is every run of
/// bytes that are not valid UTF-8, so that the pieces cover the whole text. Where PCRE2 gives up (its limits on a
/// hostile text), the next 4 KiB become one piece.
class RegexSplitter {
 public:
  /// Throws Error naming `where` if PCRE2 does not accept the pattern.
  explicit RegexSplitter(const std::string& pattern, std::string_view where = "the tokenizer");
  ~RegexSplitter();

  /// What one thread needs while matching.
  class Scratch {
   public:
    explicit Scratch(const RegexSplitter& splitter);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class RegexSplitter;
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };

  /// Walks over a text; `end_of_piece` is called with increasing begins, each the end that it gave before.
  class Walk {
   public:
    Walk(const RegexSplitter& splitter, Scratch& scratch, std::string_view text)
        : splitter_(splitter), scratch_(scratch), text_(text) {}
    [[nodiscard]] size_t next(size_t begin);

   private:
    const RegexSplitter& splitter_;
    Scratch& scratch_;
    std::string_view text_;
    size_t stretch_begin_ = 0;  // the stretch of valid UTF-8 that `begin` lies in
    size_t valid_end_ = 0;
    size_t match_begin_ = 0;  // a match found ahead, if match_end_ > begin
    size_t match_end_ = 0;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace mythos
