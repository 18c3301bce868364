// Stop requests: the first SIGINT, SIGTERM or SIGHUP asks the work to stop at its next safe point; a second one ends
// the process at once (files are safe: they are written under temporary names).
#pragma once

namespace mythos {

/// Installs the handlers. SIGPIPE is ignored, so that a closed pipe is a write error and not the end.
void install_stop_handlers();
/// The signal that asked for a stop, or 0.
int stop_signal() noexcept;
inline bool stop_requested() noexcept { return stop_signal() != 0; }
/// For tests, and for a command that goes on after a stop it has dealt with.
void clear_stop_request() noexcept;

}  // namespace mythos
