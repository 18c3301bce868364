// Where a loader stands, small and exact.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace mythos {

/// What a loader has read so far.
struct DataTotals {
  int64_t entries = 0;    ///< documents passed: null, empty and lost ones included
  int64_t documents = 0;  ///< with text in them
  int64_t skipped = 0;    ///< bad data left out
  int64_t bytes = 0;      ///< of text

  DataTotals& operator+=(const DataTotals& other);
  bool operator==(const DataTotals&) const = default;
};

/// The first id of a lane's stream that is in no row yet. Nothing before its document is read again, and no buffer has
/// to be saved: the ids between the document's begin and `token` are found by encoding it once more.
struct LanePosition {
  int64_t slot = 0;      ///< place in the endless sequence of units (see UnitOrder)
  int64_t document = 0;  ///< index in the unit
  int64_t token = 0;     ///< ids of that document that are in rows already; if > 0 the document is counted in totals
  DataTotals totals{};

  bool operator==(const LanePosition&) const = default;
};

struct LoaderPosition {
  int64_t rows = 0;  ///< global rows handed out
  int64_t turn = 0;  ///< the lane whose row comes next
  /// One per lane; empty for lanes that another rank reads.
  std::vector<std::optional<LanePosition>> lanes;

  bool operator==(const LoaderPosition&) const = default;
};

/// `identity` is what the position belongs to: its keys are compared on restore.
Json to_json(const LoaderPosition& position, const Json& identity, int64_t units_per_epoch);
/// Reads what to_json wrote. Throws Error if it is damaged, or if it belongs to another identity, with a sentence that
/// says what was and what is. `lanes` and `units_per_epoch` as now.
LoaderPosition position_from_json(const Json& json, const Json& identity, int64_t lanes, int64_t units_per_epoch);

/// Joins the positions that all ranks saved at the same step into one that any number of ranks can go on from.
Json merge_positions(const std::vector<Json>& positions);

}  // namespace mythos
