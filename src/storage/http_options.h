// How patient the program is with the network. Everything in seconds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mythos {

struct HttpOptions {
  double connect_timeout = 20;     ///< name look-up, connection and TLS together
  double stall_seconds = 30;       ///< a transfer that brought less than 1 kB in this time is broken off
  double first_backoff = 0.5;      ///< the n-th wait is random up to first_backoff * 2^n ...
  double most_backoff = 60;        ///< ... and up to this
  double contact_patience = 30;    ///< how long one thing is tried while a source is looked up, before a run starts
  double read_patience = 30 * 60;  ///< how long a read is tried without getting on
  double most_server_wait = 600;   ///< the longest wait that a server may ask for with Retry-After
  double logged_wait = 2;          ///< waits from here on are said in the log
  size_t connections = 8;          ///< at most, at a time
  uint64_t whole_file_bytes = UINT64_C(64) << 20;  ///< what is taken whole where a server cannot send parts
  uint64_t seed = 0;                               ///< of the waits' randomness; 0: another one in every process
};

}  // namespace mythos
