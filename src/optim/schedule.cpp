#include "optim/schedule.h"

#include <cmath>
#include <numbers>

namespace mythos {

double Schedule::rate(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (kind == ScheduleKind::constant) return peak;
  if (step >= total) return floor;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  const double left = kind == ScheduleKind::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * done)) : 1.0 - done;
  return floor + (peak - floor) * left;
}

}  // namespace mythos
