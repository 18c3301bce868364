// Byte-pair encoding: text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace mythos {

/// Immutable and cheap to copy; every function may be called from many threads at once.
///
/// Text is bytes. decode(encode(x)) == x for any x, NUL and invalid UTF-8 included: a byte that is not part of valid
/// UTF-8 counts as a symbol by itself when the text is split, and its token is that of the byte or of the symbols
/// around it. This holds wherever text comes in; nothing is replaced. Spellings of special tokens are ordinary text.
class Tokenizer {
 public:
  /// A .tiktoken file (o200k's splitting rule), a Hugging Face tokenizer.json (byte-level BPE), or our own; told apart
  /// by content. Throws Error naming the path and the place.
  static Tokenizer load(const std::filesystem::path& path);
  /// Throws Error naming `where` if the vocabulary does not pass its check.
  explicit Tokenizer(Vocabulary vocabulary, std::string_view where = "the vocabulary");

  /// Appends the ids of `text`. Time grows as n log n in the worst case, whatever the bytes.
  void encode(std::string_view text, std::vector<int32_t>& out) const;
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const;

  /// The bytes of all ids in a row; special tokens give their text, any other id U+FFFD. Never throws for an id.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const;
  /// What one id decodes to.
  [[nodiscard]] std::string_view token_bytes(int32_t id) const;

  /// The pieces within which merges happen: the ends of all of them, in order.
  [[nodiscard]] std::vector<size_t> split(std::string_view text) const;
  /// How many there are; takes no memory.
  [[nodiscard]] size_t count_pieces(std::string_view text) const;

  /// Largest ordinary id + 1: 199,998 for o200k. Added special tokens do not count; in our own trained files the
  /// end-of-text token, the last id, does.
  [[nodiscard]] int64_t n_ordinary() const;
  /// Largest id + 1, special tokens included.
  [[nodiscard]] int64_t n_ids() const;
  /// The end-of-text token (o200k: 199999), if the file has one.
  [[nodiscard]] std::optional<int32_t> end_of_text() const;
  /// 16 hex digits; the same for the same rule, tokens and end of text, whatever file they came from.
  [[nodiscard]] const std::string& fingerprint() const;
  [[nodiscard]] const Vocabulary& vocabulary() const;

  /// Writes our own format, whole or not at all.
  void save(const std::filesystem::path& path) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace mythos
