// A byte-pair vocabulary as data: what the tokenizer files hold, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos {

/// Ids lie below this; more is refused before memory is spent on it.
constexpr int64_t max_token_ids = int64_t{1} << 22;
/// A larger tokenizer file is refused.
constexpr uint64_t max_vocabulary_bytes = uint64_t{256} << 20;
/// The text that decodes from an end-of-text token we add ourselves.
constexpr std::string_view end_of_text_name = "<|endoftext|>";

struct Vocabulary {
  struct Special {
    int32_t id;
    std::string text;
  };

  std::string pattern;                 ///< the splitting rule, a regular expression
  std::vector<std::string> ordinary;   ///< bytes of the ordinary tokens by id; "" where the id has none
  std::vector<Special> special;        ///< by id; text never encodes to these
  std::optional<int32_t> end_of_text;  ///< one of `special`
  int64_t n_ordinary = 0;              ///< largest ordinary id + 1 (our own trained files count the end of text)

  /// True: two neighbours merge if their bytes together are a token, the lowest id first, then the leftmost.
  /// False: exactly the pairs of `merges` merge, the earliest listed first, then the leftmost.
  bool merge_by_id = true;
  std::vector<std::pair<int32_t, int32_t>> merges;
  /// Whether a piece that is a token is that token even where merging would not build it.
  bool whole_pieces = true;

  [[nodiscard]] int64_t n_ids() const;

  /// Throws Error (naming `where`) unless: tokens are distinct, all 256 single bytes are there, special ids and texts
  /// are distinct and not ordinary ones, the end of text is special, merges are of tokens and give a token.
  void check(std::string_view where) const;

  /// 16 hex digits of everything that decides ids: rule, tokens, merges, end of text; other special tokens do not.
  [[nodiscard]] std::string fingerprint() const;
};

/// Reads a vocabulary, by content: lines of "base64 rank" (.tiktoken), a Hugging Face tokenizer.json, or our own form.
/// Throws Error naming the path and the place where it does not parse; check() is left to the caller.
Vocabulary load_vocabulary(const std::filesystem::path& path);
/// The same of a file's content; `where` names it in errors.
Vocabulary parse_vocabulary(std::string_view text, std::string_view where);

/// Our own form: "mythos-tokenizer 1", one line of JSON, then lines "base64 id" of the ordinary
/// tokens, lines "id id" of the merges if they are listed, lines "base64 id" of the special tokens.
void save_vocabulary(const Vocabulary& vocabulary, const std::filesystem::path& path);

/// The parsers behind load_vocabulary; `where` names the source in errors.
Vocabulary parse_tiktoken(std::string_view text, std::string_view where);
Vocabulary parse_own(std::string_view text, std::string_view where);
Vocabulary parse_hugging_face(std::string_view text, std::string_view where);

}  // namespace mythos
