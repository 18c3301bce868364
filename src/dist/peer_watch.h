// Notices when another rank has died, hangs or was stopped, and ends this process then: what the ranks compute together
// would otherwise wait for ever.
#pragma once

#include "dist/communicator.h"

#include <cstdint>
#include <memory>

namespace mythos {

/// Every rank keeps a connection to rank 0 on a thread of its own and says a few times in each timeout that it lives.
/// Rank 0 watches them all, they watch rank 0. When a connection breaks off or nothing was heard in time, the process
/// says which rank it was and in which step, and exits with code 1 at once. A rank that only takes its time (a slow
/// disk, an evaluation) goes on living. A stop that one rank was asked for (base/signals.h) is soon asked of all.
class PeerWatch {
 public:
  /// Called by all ranks. Throws Error where no connection can be made.
  PeerWatch(Communicator& world, double timeout_seconds);
  /// Without leave() this process has failed, and the others are told so.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// What this rank is at, for messages.
  void at_step(int64_t step);
  void set_timeout(double seconds);
  /// From now on it is no accident if a rank ends. Nothing is waited for.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mythos
