// How fast new tokens come: greedy decoding with a key-value cache, nothing around it, beside how fast memory is read.
#pragma once

#include "model/model.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mythos {

struct GenerateSpeed {
  double prefill_seconds = 0;         ///< for the prompt and the first new token
  std::vector<double> token_seconds;  ///< for each further one
  std::vector<int64_t> ids;           ///< new tokens
  std::vector<double> top_logits;     ///< of the chosen tokens, to compare programs
  double read_bytes_per_s = 0;  ///< all threads reading the model's weights, the median of rounds between the tokens
  double weight_bytes_per_token = 0;        ///< that are read: decode_weight_bytes(), less what screening leaves out
  double whole_weight_bytes_per_token = 0;  ///< decode_weight_bytes()

  [[nodiscard]] double tokens_per_second() const;  ///< without the first
  /// New tokens a second if a token took no longer than reading its weights from memory. Where the looped weights stay
  /// in the processor's cache from loop to loop, a token may take less.
  [[nodiscard]] double limit() const { return read_bytes_per_s / weight_bytes_per_token; }
  /// The same if every weight were read as it is stored.
  [[nodiscard]] double whole_limit() const { return read_bytes_per_s / whole_weight_bytes_per_token; }
  /// Of the limit, by the median token: both are medians of what took turns, so that a busy moment counts for neither.
  [[nodiscard]] double fraction_of_limit() const;
  [[nodiscard]] double fraction_of_whole_limit() const { return fraction_of_limit() * limit() / whole_limit(); }
};

/// Bytes of weights that one new token needs: every block's, the looped one's once for each loop with the chosen
/// experts alone, the whole head. `element`: bytes of a stored weight. 1.39 GB for mythos_300m with o200k's vocabulary
/// in fp32.
double decode_weight_bytes(const ModelConfig& config, int64_t n_loops, double element);

/// Token ids drawn like words: few often, most rarely.
std::vector<int64_t> random_prompt(int64_t tokens, int64_t vocabulary, uint64_t seed);

/// Decodes `new_tokens` after the prompt, always the most likely token, end of text or not; twice, the first time a few
/// to warm up. Throws usage Error for sizes out of range.
GenerateSpeed measure_generate(Model& model, std::span<const int64_t> prompt, int64_t new_tokens, int64_t n_loops);

}  // namespace mythos
