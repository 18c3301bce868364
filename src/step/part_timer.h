// Where the time of a step goes.
#pragma once

#include "kernels/part.h"

#include <map>
#include <memory>
#include <string>

namespace mythos {

struct PartTimes {
  std::array<double, part_names.size()> seconds{};  ///< by Part; together they are the time measured
  std::map<std::string, double> operations;         ///< seconds by name of what ran, without what ran inside it
};

/// While it lives, times what this thread runs: each moment counts for the innermost PartScope, and outside of them
/// matrix products count as projections and everything else as elementwise. On the CPU the backward pass runs in the
/// thread that asks for it, so all of a step is seen; on other devices only what waits for them is.
class PartTimer {
 public:
  PartTimer();
  ~PartTimer();
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

  /// What was measured so far.
  [[nodiscard]] PartTimes times();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mythos
