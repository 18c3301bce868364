// Choosing the next token from logits.
#pragma once

#include "base/random.h"

#include <cstdint>
#include <span>
#include <vector>

namespace mythos {

struct SamplingOptions {
  double temperature = 0.7;  ///< 0: always the most likely token, whatever the seed
  int64_t top_k = 50;        ///< only the k most likely; 0: all
  double top_p = 1.0;  ///< only the smallest set of most likely tokens that reaches this probability; 0: one token
};

/// Throws usage Error for a negative or undefined temperature, a negative top_k, a top_p outside 0 .. 1.
void check(const SamplingOptions& options);

/// The index of the chosen logit. Ties go to the lower index. Throws Error if a logit is NaN or none is finite.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, Random& random);

}  // namespace mythos
