// What a run says of itself to other processes: RUN/status.json, read by `mythos inspect RUN` without disturbing it.
#pragma once

#include "base/json.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

namespace mythos {

/// As the training process wrote it.
struct RunStatus {
  std::string state;    ///< "running", "finished", "stopped", "failed"
  std::string message;  ///< why it stopped or failed
  int64_t pid = 0;
  std::string host;
  std::string started, updated;  ///< UTC, "2026-05-24T19:58:10Z"
  int64_t step = 0, steps = 0, tokens = 0;
  double tokens_per_second = 0, mfu = 0;
  double eta_seconds = -1;  ///< below 0: not known yet
  double hours = 0;         ///< of training, earlier starts included
  double price_per_hour = 0;
  std::string checkpoint;  ///< the newest that is known to be whole: written by this process, or verified when it began
  int64_t checkpoint_step = -1;  ///< -1: none
};
Json to_json(const RunStatus& status);
/// Nothing for JSON of another shape.
std::optional<RunStatus> run_status_from(const Json& json);

/// Writes RUN/status.json: whole or not at all, and not waiting for the disk, so it may be an older one after a power
/// cut. A write that fails is no error: it says where the run stands, and is not what the run stands on.
void write_status(const std::filesystem::path& run, const RunStatus& status);

/// The first line of what went wrong, for `message`; LibTorch's errors bring a whole stack.
std::string one_line(const std::exception& error);

/// What another process can tell.
struct ObservedRun {
  /// "running", "starting" (a process holds the folder and has not begun to train), "finished", "stopped", "failed",
  /// "crashed" (it was running and no process is there any more), or "unknown" (nothing was written down).
  std::string state = "unknown";
  std::optional<RunStatus> status;
  double age_seconds = 0;  ///< since the status was written
};
/// Looks at the status and at the folder's lock; changes nothing and does not make a process that locks it fail.
ObservedRun observe_run(const std::filesystem::path& run);

}  // namespace mythos
