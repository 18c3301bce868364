// Stop requests: the first SIGINT, SIGTERM or SIGHUP asks the work to stop at its next safe point; after it a SIGINT or
// SIGTERM ends the process at once with 128 + its number (files are safe: they are written under temporary names).
#pragma once

namespace mythos {

/// Installs the handlers. SIGPIPE and SIGXFSZ are ignored: a closed pipe and a file at its size limit (ulimit -f) are
/// write errors and not the end. So is SIGTTOU: writing to the terminal from the background does not suspend the work.
/// Under nohup SIGHUP stays ignored.
void install_stop_handlers();
/// The signal that asked for a stop, or 0.
int stop_signal() noexcept;
inline bool stop_requested() noexcept { return stop_signal() != 0; }
/// Asks for a stop as if signal `number` had come, unless one was asked for already. The next real signal is still the
/// first one: it does not end the process at once.
void request_stop(int number) noexcept;
/// For one of several ranks: SIGUSR2, which mpirun hands on, asks for a stop like SIGTERM, which it does not.
void install_rank_handler();
/// Installs a handler for SIGUSR1, which asks for a checkpoint while the work goes on.
void install_save_handler();
/// Whether SIGUSR1 has come since the last call.
bool take_save_request() noexcept;
/// For tests, and for a command that goes on after a stop it has dealt with.
void clear_stop_request() noexcept;

}  // namespace mythos
