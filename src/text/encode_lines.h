// Many texts to ids at once, line by line.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "text/tokenizer.h"

namespace mythos {

/// Where lines come from and go to; both throw what ends the work. Never called by two threads at once.
struct LineStreams {
  /// Reads up to `size` bytes and returns how many; 0 is the end. Where it may have to wait for more, it should also
  /// return once `given_up` is set.
  std::function<size_t(char* bytes, size_t size, const std::atomic<bool>& given_up)> read;
  std::function<void(std::string_view bytes)> write;
};

/// For every line {"text": ...} writes one line {"ids":[...]}, in the same order, and returns the number of lines.
/// Blank lines are passed over. `threads` share the work. Lines are answered as soon as `read` gives them, so a program
/// at the other end of a pipe may wait for its answers. Throws Error naming the line (from 1) that cannot be read,
/// after writing those before it.
int64_t encode_json_lines(const LineStreams& streams, const Tokenizer& tokenizer, int threads = 1);

}  // namespace mythos
