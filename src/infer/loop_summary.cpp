#include "infer/loop_summary.h"

#include <algorithm>
#include <cmath>

namespace mythos {
namespace {

// A share to six digits: what is behind them is noise, and lines stay short.
Json shares(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(std::round(v * 1e6) / 1e6);
  return out;
}

}  // namespace

double ExpertLoad::max_over_mean() const {
  if (share.empty()) return 0;
  return *std::max_element(share.begin(), share.end()) * static_cast<double>(share.size());
}

int64_t ExpertLoad::unused() const { return std::count(share.begin(), share.end(), 0.0); }

double ExpertLoad::entropy() const {
  double bits = 0;
  for (const double p : share) {
    if (p > 0) bits -= p * std::log2(p);
  }
  return bits;
}

double ExpertLoad::entropy_fraction() const {
  return share.size() > 1 ? entropy() / std::log2(static_cast<double>(share.size())) : 1;
}

std::vector<double> LoopSummary::halts_in_loop() const {
  std::vector<double> out;
  double before = 0;
  for (const double halted : halted_by_loop) {
    out.push_back(halted - before);
    before = halted;
  }
  return out;
}

Json experts_json(const ExpertLoad& load) {
  return {{"share", shares(load.share)}, {"max_over_mean", load.max_over_mean()}, {"unused", load.unused()}};
}

Json halting_json(const LoopSummary& s) {
  return {{"mean_loops", s.mean_loops}, {"halted_by_loop", shares(s.halted_by_loop)}};
}

}  // namespace mythos
