// The documents of a unit in a drawn order.
#pragma once

#include "data/unit_reader.h"

#include <cstdint>
#include <memory>

namespace mythos {

/// Documents that are shuffled together, and held in memory for it.
constexpr int64_t shuffle_window = 1000;

/// The entries of `reader` permuted inside windows of shuffle_window entries, by `seed`: resuming needs only the
/// window.
std::unique_ptr<UnitReader> shuffled(std::unique_ptr<UnitReader> reader, uint64_t seed);

}  // namespace mythos
