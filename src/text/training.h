// Learning a byte-pair vocabulary from text (Sennrich et al., 2016, on bytes).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace mythos {

struct TokenizerTraining {
  /// All tokens: 256 bytes, the merges, and the end of text, which is the last id.
  int64_t vocab_size = 8000;
  /// A pair must occur this often to become a token.
  int64_t min_count = 2;
  /// Longer tokens are not made.
  int64_t max_token_bytes = 128;
};

struct TrainingProgress {
  int64_t documents = 0;
  int64_t bytes = 0;       ///< of text read
  int64_t pieces = 0;      ///< distinct ones found
  bool reading = true;     ///< false once all text is read and merging goes on
  int64_t tokens = 0;      ///< in the vocabulary so far
  int64_t vocab_size = 0;  ///< to reach
};

/// Called at least every few hundred milliseconds of work; may throw to stop the training.
using TrainingProgressFn = std::function<void(const TrainingProgress&)>;
/// Gives the next document into its argument, or returns false at the end.
using DocumentSource = std::function<bool(std::string&)>;

/// The documents are cut by the o200k rule; the most frequent pair of neighbours within pieces becomes the next token,
/// until the vocabulary is full. Of equally frequent pairs the one with the lower left id wins, then the lower right
/// id. Ids 0 to 255 are the bytes of those values. The result depends on the text alone, not on the order of documents.
/// Memory grows with the distinct pieces. Throws Error (usage) for a vocabulary below 257 or above max_token_ids, and
/// Error if there is no text or too little for so many tokens, with the number that works.
Tokenizer train_tokenizer(const DocumentSource& documents, const TokenizerTraining& options = {},
                          const TrainingProgressFn& progress = {});
Tokenizer train_tokenizer(std::span<const std::string> documents, const TokenizerTraining& options = {},
                          const TrainingProgressFn& progress = {});

}  // namespace mythos
