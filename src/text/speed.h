// How fast a tokenizer is, and what it could not be faster than.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mythos {

/// A text that is encoded document by document.
struct SpeedText {
  std::string name;
  std::string bytes;
};

/// Text like English prose and like source code, made from a seed: common words and a long tail of made-up ones, by
/// Zipf's law. It is for machines that have nothing better at hand; speed on real text is what counts.
SpeedText generated_prose(size_t size, uint64_t seed);
SpeedText generated_code(size_t size, uint64_t seed);

/// The documents of a text: cut after the first line end that comes `document_bytes` or more after the cut before.
std::vector<std::string_view> documents_of(std::string_view text, size_t document_bytes);

/// One thread's speed. Rates are per second of processor time of that thread (the median of the repetitions), so that
/// what else runs on the machine counts less.
struct TextSpeed {
  std::string name;
  int64_t documents = 0, bytes = 0, tokens = 0;
  double bytes_per_s = 0, tokens_per_s = 0;
  /// Upper limits: cutting the same documents into pieces and nothing else, and reading their bytes once, 8 at a time.
  double split_bytes_per_s = 0, read_bytes_per_s = 0;
};
TextSpeed measure_text(const Tokenizer& tokenizer, const SpeedText& text, size_t document_bytes, int repetitions);

/// `threads` threads that take documents of one text in turn.
struct ThreadSpeed {
  int threads = 1;
  double bytes_per_s = 0;      ///< by the clock on the wall
  double speedup = 1;          ///< of that, over one thread
  double cpu_ns_per_byte = 0;  ///< processor time of all of them: it grows where they get in each other's way
};
std::vector<ThreadSpeed> measure_threads(const Tokenizer& tokenizer, const SpeedText& text, size_t document_bytes,
                                         int most_threads, int repetitions);

/// A text that some tokenizers take quadratic time for, at one length and at twice that length.
struct HostileSpeed {
  std::string name;
  int64_t bytes = 0;         ///< the shorter of the two
  double ns_per_byte = 0;    ///< of the longer one, processor time
  double ratio = 0;          ///< time of the longer over time of the shorter: 2 is linear
  double against_prose = 0;  ///< ns_per_byte over that of prose
};
/// `bytes`: the shorter length of most of them; the single word is ten times as long. `prose_bytes_per_s` is what to
/// compare with.
std::vector<HostileSpeed> measure_hostile(const Tokenizer& tokenizer, size_t bytes, double prose_bytes_per_s,
                                          int repetitions);

}  // namespace mythos
