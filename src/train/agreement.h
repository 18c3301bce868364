// What the ranks of a run decide together while it trains.
#pragma once

#include "dist/team.h"
#include "train/batches.h"

#include <functional>

namespace mythos {

/// In a process by itself nobody is asked: its own wishes count at once. Of several ranks all call the same at the same
/// place, and one rank's wish is everybody's.
class Agreement {
 public:
  explicit Agreement(Team& team) : team_(team) {}

  /// The signal by which a stop was asked for, 0 if none was; of several ranks as of the last vote.
  [[nodiscard]] int stop_signal() const;
  [[nodiscard]] bool stopping() const { return stop_signal() != 0; }

  /// Reads rows. `stopped` and `ended` where that happened on any rank. What is thrown on one rank is thrown there, and
  /// PeerFailed on the others.
  Read read(const std::function<Read()>& rows);

  /// After each step: whether any rank was asked to save, and whether the first finds a limit reached.
  struct Wishes {
    bool save = false, limit = false;
    bool part_lost = false;  ///< see Saver::take_part_lost()
  };
  Wishes after_step(const Wishes& own);

 private:
  Team& team_;
  int stop_ = 0;
};

}  // namespace mythos
