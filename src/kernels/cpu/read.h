// Reading memory and nothing else: the limit of what reads its weights once.
#pragma once

#include <cstdint>

namespace mythos::cpu {

/// The sum of n 64-bit words, read by one thread in 1, 2 or 4 streams side by side: which is fastest depends on the
/// processor.
uint64_t sum_words(const uint64_t* words, int64_t n, int64_t streams);

}  // namespace mythos::cpu
