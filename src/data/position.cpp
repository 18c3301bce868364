#include "data/position.h"

#include "base/error.h"

#include <fmt/ranges.h>

namespace mythos {
namespace {

constexpr int64_t format_version = 2;

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

LanePosition source_from(const Json& json) {
  if (!json.is_object()) throw damaged("a lane's place is not an object");
  LanePosition p;
  p.slot = number(json, "slot");
  p.document = number(json, "document");
  p.token = number(json, "token");
  p.ended = json.contains("ended");
  if (json.contains("at")) p.bookmark = std::make_shared<const Json>(json["at"]);
  p.totals = {number(json, "entries"), number(json, "documents"), number(json, "skipped"), number(json, "bytes")};
  return p;
}

const Json& list(const Json& json, const char* key, std::optional<size_t> size = {}) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array() || (size && it->size() != *size)) {
    throw damaged(fmt::format("'{}' is not a list as it should be", key));
  }
  return *it;
}

LoaderPosition::Lane lane_from(const Json& json, int64_t lane, int64_t lanes, size_t sources) {
  if (!json.is_object()) throw damaged(fmt::format("lane {} is not an object", lane));
  LoaderPosition::Lane position;
  position.rows = number(json, "rows");
  for (const Json& source : list(json, "sources", sources)) {
    position.sources.push_back(source_from(source));
    if (position.sources.back().slot % lanes != lane) {
      throw damaged(fmt::format("lane {} is in a unit of another lane", lane));
    }
  }
  return position;
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

Json to_json(const LoaderPosition& position, const Json& identity) {
  Json lanes = Json::array();
  for (const auto& lane : position.lanes) {
    if (!lane) {
      lanes.push_back(nullptr);
      continue;
    }
    Json sources = Json::array();
    for (const LanePosition& p : lane->sources) {
      Json source{{"slot", p.slot},
                  {"document", p.document},
                  {"token", p.token},
                  {"entries", p.totals.entries},
                  {"documents", p.totals.documents},
                  {"skipped", p.totals.skipped},
                  {"bytes", p.totals.bytes}};
      if (p.ended) source["ended"] = true;
      if (p.bookmark) source["at"] = *p.bookmark;
      sources.push_back(std::move(source));
    }
    lanes.push_back({{"rows", lane->rows}, {"sources", std::move(sources)}});
  }
  return Json{{"format", format_version},
              {"of", identity},
              {"rows", position.rows},
              {"lanes", position.lanes.size()},
              {"turn", position.turn},
              {"commits", position.commits},
              {"held_out_ends", position.held_out_ends},
              {"units", position.units},
              {"lane_positions", std::move(lanes)}};
}

LoaderPosition position_from_json(const Json& json, const Json& identity, size_t sources) {
  if (!json.is_object()) throw damaged("it is not an object");
  if (number(json, "format") != format_version) {
    throw failure(fmt::format("the saved data position has format {}, this program reads {}", number(json, "format"),
                              format_version),
                  "use the version that wrote it");
  }
  const auto saved = json.find("of");
  if (saved == json.end() || !saved->is_object()) throw damaged("it does not say what data it is of");
  std::vector<std::string> differences;
  bool other_bytes = false;
  for (const auto& [key, now] : identity.items()) {
    const Json was = saved->contains(key) ? (*saved)[key] : Json(nullptr);
    if (was == now) continue;
    if (key == "ends_of_files") {
      other_bytes = !was.is_null();
    } else {
      differences.push_back(fmt::format("{} was {} and is {}", key, shown(was), shown(now)));
    }
  }
  if (differences.empty() && other_bytes) {
    differences.emplace_back("the files have the same names and sizes, but other content");
  }
  if (!differences.empty()) {
    throw failure(
        fmt::format("the saved data position belongs to other data or settings: {}", fmt::join(differences, "; ")),
        "put them back, or begin anew with --fresh");
  }
  LoaderPosition position;
  position.rows = number(json, "rows");
  position.turn = number(json, "turn");
  const Json& saved_lanes = list(json, "lane_positions");
  const auto lanes = static_cast<int64_t>(saved_lanes.size());
  if (number(json, "lanes") != lanes) throw damaged("lanes are missing");
  if (position.turn >= lanes) throw damaged("its next lane does not exist");
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const Json& entry = saved_lanes[static_cast<size_t>(lane)];
    position.lanes.push_back(entry.is_null() ? std::nullopt : std::optional(lane_from(entry, lane, lanes, sources)));
  }
  for (const Json& units : list(json, "units", sources)) {
    if (!units.is_number_integer() || units.get<int64_t>() < -1) throw damaged("'units' are not numbers");
    position.units.push_back(units.get<int64_t>());
  }
  for (const Json& end : list(json, "held_out_ends", sources)) {
    if (!end.is_array() || end.size() != 3) throw damaged("the end of the held-out part is not a place");
    for (const Json& part : end) {
      if (!part.is_number_unsigned() && !(part.is_number_integer() && part.get<int64_t>() >= 0)) {
        throw damaged("the end of the held-out part is not a place");
      }
    }
    position.held_out_ends.push_back(end);
  }
  position.commits = commits_of(json);
  return position;
}

std::map<std::string, std::string> commits_of(const Json& position) {
  std::map<std::string, std::string> commits;
  const auto it = position.is_object() ? position.find("commits") : position.end();
  if (!position.is_object() || it == position.end() || !it->is_object()) return commits;
  for (const auto& [repository, commit] : it->items()) {
    if (commit.is_string()) commits[repository] = commit.get<std::string>();
  }
  return commits;
}

Json LoaderPosition::hindmost(size_t source) const {
  const LanePosition* last = nullptr;
  for (const auto& lane : lanes) {
    if (!lane || lane->sources[source].ended) continue;
    const LanePosition& p = lane->sources[source];
    if (last == nullptr || p.slot < last->slot) last = &p;
  }
  return last != nullptr && last->bookmark ? *last->bookmark : Json(nullptr);
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
    const Json& units = list(position, "units", merged["units"].size());
    for (size_t source = 0; source < units.size(); ++source) {
      if (merged["units"][source] == -1) merged["units"][source] = units[source];
    }
  }
  return merged;
}

}  // namespace mythos
