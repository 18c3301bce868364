#include "data/options.h"

#include "base/error.h"
#include "base/units.h"

#include <cmath>

namespace mythos {
namespace {

void range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw usage_error(fmt::format("{} is {}", key, value), fmt::format("it can be {} to {}", low, high));
}

}  // namespace

OnBadData on_bad_data_from(std::string_view name) {
  if (name == "stop") return OnBadData::stop;
  if (name == "skip") return OnBadData::skip;
  throw usage_error(fmt::format("data.on_bad_data is '{}'", name), suggestion(name, {"stop", "skip"}));
}

void check(const DataOptions& options) {
  range("data.validation_documents", options.validation_documents, 0, INT64_C(1) << 40);
  range("data.lanes", options.lanes, 1, 4096);
  range("train.seq_len", options.seq_len, 1, INT64_C(1) << 24);
  range("data.epochs", options.epochs, 0, INT64_C(1) << 20);
  range("data.workers", options.workers, 1, 1024);
  range("data.prefetch", options.prefetch, 0, 1 << 20);
  range("number of ranks", options.world, 1, INT64_C(1) << 20);
  range("rank", options.rank, 0, options.world - 1);
  if (!options.weights.empty() && options.weights.size() != options.sources.size()) {
    throw usage_error(
        fmt::format("data.weights has {} numbers for {} sources", options.weights.size(), options.sources.size()),
        "give one number for each source");
  }
  for (const double weight : options.weights) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      throw usage_error(fmt::format("data.weights has {}", weight), "every weight is a number above 0");
    }
  }
}

}  // namespace mythos
