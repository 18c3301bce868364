#include "data/sequence.h"

#include "base/error.h"
#include "base/random.h"

#include <algorithm>
#include <numeric>

namespace mythos {
namespace {

Error damaged(const std::string& what) {
  return failure(fmt::format("the saved data position is damaged: {}", what), "use another checkpoint");
}

int64_t number(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number_integer() || it->get<int64_t>() < 0) {
    throw damaged(fmt::format("'{}' is not a number", key));
  }
  return it->get<int64_t>();
}

}  // namespace

std::vector<uint32_t> permutation(size_t n, uint64_t seed) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  Random random(seed);
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

UnitSequence::UnitSequence(const Corpus& corpus, int64_t lanes, bool shuffle, uint64_t seed, bool all_lanes,
                           const Saved* saved)
    : corpus_(corpus), lanes_(std::max<int64_t>(1, lanes)), shuffle_(shuffle), seed_(seed) {
  if (saved == nullptr) {
    if (!all_lanes && at(lanes_ - 1).epoch > 0) lanes_ = std::max<int64_t>(1, units_);
    if (units_ >= 0) set_units(units_);  // the stride follows the lanes
    return;
  }
  if (saved->lanes < 1 || saved->lanes > lanes) {
    throw damaged(fmt::format("it has {} lanes, and data.lanes is {}", saved->lanes, lanes));
  }
  lanes_ = saved->lanes;
  if (saved->units) set_units(*saved->units);
  if (saved->bookmark.is_null()) return;
  const Json& bookmark = saved->bookmark;
  const int64_t epoch_number = number(bookmark, "epoch");
  if (epoch_number > 0 && units_ < 0) throw damaged("it has an epoch but not its length");
  Epoch& e = epoch(epoch_number);
  const int64_t file = number(bookmark, "file");
  const auto index = std::ranges::find(e.files, static_cast<uint64_t>(file));
  if (index == e.files.end()) throw damaged("it names a file that is not there");
  e.first = static_cast<size_t>(index - e.files.begin());
  e.begins = {number(bookmark, "file_slot")};
  if (bookmark.contains("place")) {
    corpus_.file(static_cast<size_t>(file)).find(number(bookmark, "part"), bookmark["place"]);
  }
}

void UnitSequence::set_units(int64_t units) const {
  units_ = units;
  stride_ = std::max<int64_t>(units, 1);
  while (std::gcd(stride_, lanes_) != 1) ++stride_;
}

UnitSequence::Epoch& UnitSequence::epoch(int64_t n) const {
  for (Epoch& e : epochs_) {
    if (e.number == n) return e;
  }
  if (epochs_.size() == 3) epochs_.erase(epochs_.begin());
  Epoch& e = epochs_.emplace_back();
  e.number = n;
  if (shuffle_) {
    e.files = permutation(corpus_.files().size(), derive_seed(seed_, static_cast<uint64_t>(n), "data.files"));
  } else {
    e.files.resize(corpus_.files().size());
    std::iota(e.files.begin(), e.files.end(), 0U);
  }
  e.begins = {0};
  return e;
}

int64_t UnitSequence::part_of(Epoch& e, size_t file, int64_t place, const std::stop_token& stop) const {
  if (!shuffle_ || corpus_.file(file).in_order_only()) return place;
  if (e.parts_of != file) {
    const uint64_t seed = derive_seed(seed_, static_cast<uint64_t>(e.number), "data.units");
    e.parts = permutation(static_cast<size_t>(corpus_.count(file, stop)), derive_seed(seed, file, "file"));
    e.parts_of = file;
  }
  return e.parts[static_cast<size_t>(place)];
}

std::optional<UnitSequence::Unit> UnitSequence::find(Epoch& e, int64_t place, const std::stop_token& stop) const {
  if (place < e.begins.front()) {  // before what was saved: from the begin
    e.first = 0;
    e.begins = {0};
  }
  size_t i = static_cast<size_t>(std::ranges::upper_bound(e.begins, place) - e.begins.begin()) - 1;
  for (; e.first + i < e.files.size(); ++i) {
    const size_t file = e.files[e.first + i];
    const int64_t in_file = place - e.begins[i];
    const bool all_known = i + 1 < e.begins.size();
    // The units of a shuffled file are permuted, so all of them must be known.
    if (all_known || (!shuffle_ && corpus_.has(file, in_file, stop)) || in_file < corpus_.count(file, stop)) {
      return Unit{e.number, file, part_of(e, file, in_file, stop), false};
    }
    e.begins.push_back(e.begins[i] + corpus_.count(file, stop));
  }
  if (units_ < 0) set_units(e.begins.back());
  return std::nullopt;
}

UnitSequence::Unit UnitSequence::at(int64_t slot, const std::stop_token& stop) const {
  const std::lock_guard lock(mutex_);
  if (units_ < 0) {
    if (const auto unit = find(epoch(0), slot, stop)) return *unit;
  }
  const int64_t n = slot / stride_;
  const int64_t place = slot % stride_;
  if (place < units_) {
    if (const auto unit = find(epoch(n), place, stop)) return *unit;
    throw failure(fmt::format("{} has fewer units of reading than before", corpus_.name()),
                  "leave the data alone while it is read");
  }
  return {n, 0, 0, true};
}

int64_t UnitSequence::epoch_of(int64_t slot) const {
  const std::lock_guard lock(mutex_);
  return units_ < 0 ? 0 : slot / stride_;
}

std::optional<int64_t> UnitSequence::units() const {
  const std::lock_guard lock(mutex_);
  return units_ < 0 ? std::nullopt : std::optional(units_);
}

uint64_t UnitSequence::document_seed(const Unit& unit) const {
  const uint64_t of_epoch = derive_seed(seed_, static_cast<uint64_t>(unit.epoch), "data.documents");
  return derive_seed(derive_seed(of_epoch, unit.file, "file"), static_cast<uint64_t>(unit.part), "unit");
}

Json UnitSequence::bookmark(int64_t slot) const {
  const std::lock_guard lock(mutex_);
  const int64_t n = units_ < 0 ? 0 : slot / stride_;
  const int64_t place = units_ < 0 ? slot : slot % stride_;
  const Epoch& e = epoch(n);
  const auto behind = std::ranges::upper_bound(e.begins, place) - e.begins.begin();
  if (behind == 0 || e.first + static_cast<size_t>(behind) > e.files.size()) return nullptr;
  const size_t i = static_cast<size_t>(behind) - 1;
  const size_t file = e.files[e.first + i];
  Json json{{"epoch", n}, {"file", file}, {"file_slot", e.begins[i]}};
  // A shuffled file is looked at as a whole anyhow.
  const int64_t part = place - e.begins[i];
  if (shuffle_) return json;
  const Json in_file = corpus_.file(file).bookmark(part);
  if (!in_file.is_null()) {
    json["part"] = part;
    json["place"] = in_file;
  }
  return json;
}

}  // namespace mythos
