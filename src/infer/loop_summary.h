// What the looped block did: which experts the tokens went to, and after how many loops they halted.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <vector>

namespace mythos {

/// Where the router sent tokens.
struct ExpertLoad {
  std::vector<double> share;  ///< of all choices, by expert; sums to 1, all 0 where nothing was chosen

  /// Choices of the busiest expert over the mean: 1 where all are equally busy.
  [[nodiscard]] double max_over_mean() const;
  /// Experts that no token chose.
  [[nodiscard]] int64_t unused() const;
  /// In bits; log2 of the number of experts where all are equally busy.
  [[nodiscard]] double entropy() const;
  /// As part of its maximum, 0 to 1.
  [[nodiscard]] double entropy_fraction() const;
};

struct LoopSummary {
  ExpertLoad experts;                       ///< of all loops together
  std::vector<ExpertLoad> experts_by_loop;  ///< of each loop
  std::vector<double> halted_by_loop;       ///< share of positions that have halted after 1, 2, ... loops
  double mean_loops = 0;                    ///< until a position halts; one that never does counts all loops

  /// Share of positions.
  [[nodiscard]] double never_halted() const { return halted_by_loop.empty() ? 0 : 1 - halted_by_loop.back(); }
  /// Share of positions that halt in loop 1, 2, ...
  [[nodiscard]] std::vector<double> halts_in_loop() const;
};

/// {"share": [..], "max_over_mean": x, "unused": n}
Json experts_json(const ExpertLoad& load);
/// {"mean_loops": x, "halted_by_loop": [..]}
Json halting_json(const LoopSummary& summary);

}  // namespace mythos
