// How fast new tokens come: greedy decoding with a key-value cache, nothing around it.
#pragma once

#include "model/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mythos {

struct GenerateSpeed {
  std::vector<int64_t> ids;           ///< the new tokens, each the most likely one
  std::vector<double> top_logits;     ///< their logits
  double prefill_seconds = 0;         ///< the prompt, until its first new token is chosen
  std::vector<double> token_seconds;  ///< each further new token: one less than ids

  /// New tokens per second after the first one, which belongs to the prompt.
  [[nodiscard]] double tokens_per_second() const;
};

/// Ids like those of a text: token r of a seeded order is drawn with a probability falling with its rank r.
std::vector<int64_t> random_prompt(int64_t tokens, int64_t vocabulary, uint64_t seed);

/// Exactly `new_tokens` (2 at least) after `prompt`, end of text or not. Two tokens are made beforehand and not
/// counted, so that what is set up at first use is. n_loops 0: the model's max_loop_iters. Throws usage Error where
/// prompt and new tokens exceed max_seq_len, and for ids outside the vocabulary.
GenerateSpeed measure_generate(Model& model, std::span<const int64_t> prompt, int64_t new_tokens, int64_t n_loops);

}  // namespace mythos
