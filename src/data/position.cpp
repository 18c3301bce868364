#include "data/position.h"

#include "base/error.h"

#include <fmt/ranges.h>

namespace mythos {
namespace {

constexpr int64_t format_version = 1;

Error damaged(std::string_view what) {
  return failure(fmt::format("the saved data position is damaged: {}", what), "use another checkpoint");
}

int64_t number(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number_integer()) throw damaged(fmt::format("'{}' is not a number", key));
  if (it->is_number_unsigned() && it->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw damaged(fmt::format("'{}' is too large", key));
  }
  const auto value = it->get<int64_t>();
  if (value < 0) throw damaged(fmt::format("'{}' is negative", key));
  return value;
}

LanePosition lane_from(const Json& json, int64_t lane, int64_t lanes, int64_t units_per_epoch) {
  if (!json.is_object()) throw damaged(fmt::format("lane {} is not an object", lane));
  LanePosition p;
  const int64_t epoch = number(json, "epoch");
  const int64_t unit = number(json, "unit");
  if (unit >= units_per_epoch || epoch > INT64_MAX / units_per_epoch - 1) {
    throw damaged(fmt::format("lane {} is past the source", lane));
  }
  p.slot = epoch * units_per_epoch + unit;
  if (p.slot % lanes != lane) throw damaged(fmt::format("lane {} is in a unit of another lane", lane));
  p.document = number(json, "document");
  p.token = number(json, "token");
  p.totals = {number(json, "entries"), number(json, "documents"), number(json, "skipped"), number(json, "bytes")};
  return p;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "nothing";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

DataTotals& DataTotals::operator+=(const DataTotals& other) {
  entries += other.entries;
  documents += other.documents;
  skipped += other.skipped;
  bytes += other.bytes;
  return *this;
}

Json to_json(const LoaderPosition& position, const Json& identity, int64_t units_per_epoch) {
  Json lanes = Json::array();
  for (const auto& lane : position.lanes) {
    if (!lane) {
      lanes.push_back(nullptr);
      continue;
    }
    lanes.push_back({{"epoch", lane->slot / units_per_epoch},
                     {"unit", lane->slot % units_per_epoch},
                     {"document", lane->document},
                     {"token", lane->token},
                     {"entries", lane->totals.entries},
                     {"documents", lane->totals.documents},
                     {"skipped", lane->totals.skipped},
                     {"bytes", lane->totals.bytes}});
  }
  return Json{{"format", format_version},
              {"of", identity},
              {"rows", position.rows},
              {"turn", position.turn},
              {"lane_positions", std::move(lanes)}};
}

LoaderPosition position_from_json(const Json& json, const Json& identity, int64_t lanes, int64_t units_per_epoch) {
  if (!json.is_object()) throw damaged("it is not an object");
  if (number(json, "format") != format_version) {
    throw failure(fmt::format("the saved data position has format {}, this program reads {}", number(json, "format"),
                              format_version),
                  "use the version that wrote it");
  }
  const auto saved = json.find("of");
  if (saved == json.end() || !saved->is_object()) throw damaged("it does not say what data it is of");
  std::vector<std::string> differences;
  for (const auto& [key, now] : identity.items()) {
    const Json was = saved->contains(key) ? (*saved)[key] : Json(nullptr);
    if (was != now) differences.push_back(fmt::format("{} was {} and is {}", key, shown(was), shown(now)));
  }
  if (!differences.empty()) {
    throw failure(
        fmt::format("the saved data position belongs to other data or settings: {}", fmt::join(differences, "; ")),
        "put them back, or begin anew with --fresh");
  }
  LoaderPosition position;
  position.rows = number(json, "rows");
  position.turn = number(json, "turn");
  if (position.turn >= lanes) throw damaged("its next lane does not exist");
  const auto list = json.find("lane_positions");
  if (list == json.end() || !list->is_array() || static_cast<int64_t>(list->size()) != lanes) {
    throw damaged("it does not have one entry for each lane");
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const Json& entry = (*list)[static_cast<size_t>(lane)];
    position.lanes.push_back(entry.is_null() ? std::nullopt
                                             : std::optional(lane_from(entry, lane, lanes, units_per_epoch)));
  }
  return position;
}

Json merge_positions(const std::vector<Json>& positions) {
  if (positions.empty()) throw failure("there are no data positions to merge");
  Json merged = positions.front();
  for (const Json& position : positions) {
    for (const char* key : {"format", "of", "rows", "turn"}) {
      if (!position.contains(key) || position[key] != merged[key]) {
        throw failure(
            fmt::format("the ranks' data positions differ in '{}': they were not saved at the same step", key));
      }
    }
    const Json& lanes = position.at("lane_positions");
    if (lanes.size() != merged["lane_positions"].size()) throw damaged("ranks have different numbers of lanes");
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      if (!lanes[lane].is_null()) merged["lane_positions"][lane] = lanes[lane];
    }
  }
  return merged;
}

}  // namespace mythos
