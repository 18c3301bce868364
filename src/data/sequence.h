// The endless sequence of reading units: what order they come in, epoch after epoch.
#pragma once

#include "data/corpus.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace mythos {

/// A permutation of 0 .. n-1 that depends on nothing but its arguments.
std::vector<uint32_t> permutation(size_t n, uint64_t seed);

/// Slot s is the s-th place in the sequence and belongs to lane s mod lanes; an epoch takes `stride` slots: one for
/// each unit, and up to a few empty ones so that stride and lanes have no common divisor. In the first epoch unit g (in
/// reading order) is therefore in lane g mod lanes; in later epochs the units go around the lanes. So lanes never wait
/// for each other at the end of an epoch (the lane of a row never depends on what other lanes hold), and yet in the
/// long run every unit is read equally often, however unequal they are.
///
/// Reading order: files as they are listed, units as they lie in the file. With `shuffle` the files of each epoch are
/// permuted, and the units inside each file, but for compressed text, which can only be read in its order.
///
/// Files are looked into as slots are asked for: how many units an epoch has is known when its end was met, or was
/// known when a position was saved.
class UnitSequence {
 public:
  struct Unit {
    int64_t epoch = 0;
    size_t file = 0;
    int64_t part = 0;   ///< of the file
    bool empty = true;  ///< a slot without a unit
  };

  /// What is known of a sequence that goes on: its lanes, the units of an epoch if that is known, and a bookmark of the
  /// hindmost lane, or null.
  struct Saved {
    int64_t lanes = 1;
    std::optional<int64_t> units;
    Json bookmark;
  };

  /// `lanes` as wanted; there are never more than units, unless `all_lanes`: the lanes without a unit of their own are
  /// then in a later epoch from the beginning.
  UnitSequence(const Corpus& corpus, int64_t lanes, bool shuffle, uint64_t seed, bool all_lanes = false,
               const Saved* saved = nullptr);

  [[nodiscard]] int64_t lanes() const { return lanes_; }
  [[nodiscard]] Unit at(int64_t slot, const std::stop_token& stop = {}) const;
  /// 0 as long as nobody has met the end of the first epoch.
  [[nodiscard]] int64_t epoch_of(int64_t slot) const;
  /// Units in an epoch, if known.
  [[nodiscard]] std::optional<int64_t> units() const;
  /// What the order of a unit's documents is drawn from.
  [[nodiscard]] uint64_t document_seed(const Unit& unit) const;

  /// What a sequence needs to go on at a slot that has a unit, and behind it, without looking at anything before:
  /// {"epoch", "file", "file_slot"} and of text {"part", "place"}. The same for the same slot, whatever else is known.
  [[nodiscard]] Json bookmark(int64_t slot) const;

 private:
  // One epoch: its files in order, and the place of the first unit of those met so far.
  struct Epoch {
    int64_t number = 0;
    std::vector<uint32_t> files;
    size_t first = 0;             // index in `files` of begins[0]
    std::vector<int64_t> begins;  // place of the first unit; one more than files met
    size_t parts_of = SIZE_MAX;   // the file whose units `parts` permutes
    std::vector<uint32_t> parts;
  };

  Epoch& epoch(int64_t number) const;
  // The unit at a place of an epoch; empty behind its end, which then is known.
  std::optional<Unit> find(Epoch& epoch, int64_t place, const std::stop_token& stop) const;
  void set_units(int64_t units) const;
  int64_t part_of(Epoch& epoch, size_t file, int64_t place, const std::stop_token& stop) const;

  const Corpus& corpus_;
  int64_t lanes_;
  bool shuffle_;
  uint64_t seed_;
  mutable std::mutex mutex_;
  mutable int64_t units_ = -1;
  mutable int64_t stride_ = 0;
  mutable std::vector<Epoch> epochs_;  // those that lanes are in: two at most in practice
};

}  // namespace mythos
