// Cutting text into the pieces within which byte pairs merge.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace mythos {

/// The o200k_base rule as a regular expression; O200kSplitter gives exactly its matches.
extern const std::string_view o200k_pattern;

/// A hand-written form of the o200k rule. Linear time for any bytes; no allocation; the pieces cover the whole text.
/// A byte that is not part of valid UTF-8 counts as a symbol by itself.
class O200kSplitter {
 public:
  /// The end of the piece that starts at `begin`; text.size() > begin.
  [[nodiscard]] size_t next(std::string_view text, size_t begin) const;

 private:
  struct Cursor;
  CharClasses classes_;
};

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
