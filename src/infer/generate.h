// Text from a model, token by token, with a key-value cache.
#pragma once

#include "infer/sampling.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct GenerateOptions {
  int64_t max_new_tokens = 32;
  int64_t n_loops = 0;  ///< 0: the model's max_loop_iters; may exceed it
  SamplingOptions sampling;
  uint64_t seed = 0;
};

struct Generation {
  std::vector<int32_t> ids;  ///< new tokens, without the end of text that stopped it
  int64_t prompt_tokens = 0;
  bool ended = false;  ///< the model said end of text
  double prompt_seconds = 0;
  double seconds = 0;  ///< for the new tokens
};

/// The ids a generation starts from: those of the prompt, or the end-of-text token for an empty one. Throws usage Error
/// for an empty prompt where the model has no end-of-text token, for a prompt and new tokens beyond max_seq_len, for a
/// token outside the model's vocabulary, and for options out of their range.
std::vector<int32_t> prompt_ids(const ModelConfig& model, const Tokenizer& tokenizer, std::string_view prompt,
                                const GenerateOptions& options);

/// Goes on after `prompt`. `on_text` (may be empty) gets the new text in pieces of whole UTF-8 characters as they come.
/// What prompt_ids refuses is refused before anything is computed. Tokens of the model's vocabulary that the tokenizer
/// does not know are never chosen. A stop signal ends it after the token in work. The same seed gives the same text.
Generation generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text = {});

/// How many bytes at the end of `text` are the beginning of a UTF-8 character that is not complete yet (0 to 3).
size_t incomplete_utf8_tail(std::string_view text);

}  // namespace mythos
