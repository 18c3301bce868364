// The learning rate over the steps of a run.
#pragma once

#include <cstdint>

namespace mythos {

enum class ScheduleKind {
  cosine,    ///< warm-up, then half a cosine down to the floor at `total` (Loshchilov and Hutter, 2017)
  linear,    ///< warm-up, then a straight line down to the floor
  constant,  ///< warm-up, then the peak
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 6e-4;
  double floor = 6e-5;
  int64_t warmup = 300;  ///< steps of linear growth from 0
  int64_t total = 0;     ///< the floor is reached at this step and kept beyond

  /// The rate of step s, counted from 0: step 0 of a run with a warm-up uses rate 0. The log's step number is s + 1.
  [[nodiscard]] double rate(int64_t step) const;
};

}  // namespace mythos
