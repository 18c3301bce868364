// run.notify: a command of the user's that is told what becomes of the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace mythos {

enum class RunEvent {
  finish,    ///< all steps are done
  crash,     ///< it ends with an error
  stop,      ///< it ends early and well: a limit of time or money, a spot machine that is taken back
  rollback,  ///< it goes back to an earlier checkpoint
  low_disk,  ///< the checkpoints' disk is nearly full
};
std::string_view to_string(RunEvent event);

/// Runs the command with `sh -c` in a process group of its own, its environment having MYTHOS_EVENT ("finish", "crash",
/// ...), MYTHOS_RUN (the run's folder, absolute), MYTHOS_STEP and MYTHOS_MESSAGE (one sentence). Its output goes to the
/// log, the first 64 kB of it. What goes wrong with it is a warning. Events are dealt with one after another on a
/// thread of its own: training never waits.
class Notifier {
 public:
  /// An empty command: nothing happens. A command that takes longer than `limit_seconds` is killed, with all it
  /// started.
  Notifier(std::string command, const std::filesystem::path& run, double limit_seconds = 60);
  /// Waits for the events that were sent, for as long as the limits last.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void send(RunEvent event, int64_t step, std::string message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mythos
