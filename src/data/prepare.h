// Tokenizes a source once, into a folder that trains like the source itself.
#pragma once

#include "data/loader.h"
#include "data/prepared.h"

#include <filesystem>
#include <functional>

namespace mythos {

struct PrepareProgress {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  size_t files_done = 0;
  size_t files = 0;
  double share = 0;  ///< of the source, by the bytes of its files; an estimate inside a file
};

struct PrepareReport {
  PreparedInfo info;
  bool was_done = false;      ///< it had been prepared before
  int64_t tokens_before = 0;  ///< done by an earlier, interrupted start
  uint64_t bytes = 0;         ///< of the token files and their indexes
};

/// Reads options.sources in order, tokenizes on `workers` threads and writes `out`: token files of 64 units each with
/// their index, and at last prepared.json. Interrupted in any way, the same call goes on behind the last whole token
/// file. `progress` is called a few times a second and may throw to stop.
///
/// Throws a refusal if `out` holds something else (other data, another tokenizer, another process at work), Error if it
/// cannot be written or the source cannot be read.
PrepareReport prepare(const DataOptions& options, const Encoder& encoder, const std::filesystem::path& out,
                      const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace mythos
