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

/// Goes on after `prompt`. `on_text` (may be empty) gets the new text in pieces of whole UTF-8 characters as they come.
/// An empty prompt starts from the end-of-text token where the model has one; where it has none that is a usage Error.
/// A prompt and new tokens beyond max_seq_len are a usage Error before anything is computed. Tokens of the model's
/// vocabulary that the tokenizer does not know are never chosen. The same seed gives the same text.
Generation generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text = {});

/// How many bytes at the end of `text` are the beginning of a UTF-8 character that is not complete yet (0 to 3).
size_t incomplete_utf8_tail(std::string_view text);

}  // namespace mythos
