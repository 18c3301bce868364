// history.jsonl: what happened to a run, line by line with times: every start, what it went on from, every warning, and
// how each start ended. Never taken back, unlike metrics.jsonl, where a run that goes back forgets.
#pragma once

#include "base/append_file.h"
#include "base/json.h"

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

namespace mythos {

/// A line of it: {"time": "2026-05-24T19:58:10Z", "event": .., "step": N, "text": ..}. The events are "start", "lost"
/// (found at the next start: the one before ended without a word), "warning", "end". The step is the last that was
/// complete.
class History {
 public:
  /// Opens RUN/history.jsonl. If the last start has no end, "lost" is written, with the last step and time of
  /// metrics.jsonl: so to be called before that is cut back. What cannot be written is dropped.
  explicit History(const std::filesystem::path& run);

  /// Thread-safe.
  void add(std::string_view event, int64_t step, std::string_view text);

 private:
  std::mutex mutex_;
  AppendFile file_;
};

/// The lines of RUN/history.jsonl, oldest first; of a long file those in its last megabyte. Empty if there is none;
/// what is no such line is passed over.
Json read_history(const std::filesystem::path& run);
/// The last line of RUN/metrics.jsonl that describes a step; null if there is none. The file is read only at its end.
Json last_step_of(const std::filesystem::path& run);

}  // namespace mythos
