// Where a loader stands, small and exact.
#pragma once

#include "base/json.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

/// The first id of a lane's stream of one source that is in no row yet. Nothing before its document is read again, and
/// no buffer has to be saved: the ids between the document's begin and `token` are found by encoding it once more.
struct LanePosition {
  int64_t slot = 0;      ///< place in the endless sequence of units (see UnitSequence)
  int64_t document = 0;  ///< index in the unit
  int64_t token = 0;     ///< ids of that document that are in rows already; if > 0 the document is counted in totals
  bool ended = false;    ///< the last epoch is over for this lane
  DataTotals totals{};
  std::shared_ptr<const Json> bookmark;  ///< UnitSequence::bookmark of the slot; null before the first row
};

struct LoaderPosition {
  struct Lane {
    int64_t rows = 0;                   ///< the lane has handed out
    std::vector<LanePosition> sources;  ///< one for each source that is mixed
  };

  int64_t rows = 0;                        ///< global rows handed out
  int64_t turn = 0;                        ///< the lane whose row comes next
  std::vector<std::optional<Lane>> lanes;  ///< empty for lanes that another rank reads
  /// Units in an epoch of each source, where a lane is behind its first; -1: not needed yet.
  std::vector<int64_t> units;
  std::vector<Json> held_out_ends;             ///< of each source: [file, part, document]
  std::map<std::string, std::string> commits;  ///< Storage::commits

  /// The bookmark of a source's hindmost lane, or null.
  [[nodiscard]] Json hindmost(size_t source) const;
};

/// `identity` is what the position belongs to: its keys are compared on restore.
Json to_json(const LoaderPosition& position, const Json& identity);
/// Reads what to_json wrote. Throws Error if it is damaged, or if it belongs to another identity, with a sentence that
/// says what was and what is.
LoaderPosition position_from_json(const Json& json, const Json& identity, size_t sources);
/// The commits alone, of a position whatever it belongs to; none if there are none.
std::map<std::string, std::string> commits_of(const Json& position);

/// Joins the positions that all ranks saved at the same step into one that any number of ranks can go on from.
Json merge_positions(const std::vector<Json>& positions);

}  // namespace mythos
