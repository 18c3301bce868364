// A lane: its units in order, their documents encoded and joined, cut into rows.
#pragma once

#include "data/corpus.h"
#include "data/position.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace mythos {

/// The endless sequence of units. Slot s is the s-th place in it and belongs to lane s mod lanes; an epoch takes
/// `stride` slots: one for each unit, and up to a few empty ones so that stride and lanes have no common divisor. In
/// the first epoch unit g (in reading order) is therefore in lane g mod lanes; in later epochs the units go around the
/// lanes. So lanes never wait for each other at the end of an epoch (the lane of a row never depends on what other
/// lanes hold), and yet in the long run every unit is read equally often, however unequal they are. There are never
/// more lanes than units: the lanes without a unit of their own are left out of the turn.
class UnitOrder {
 public:
  UnitOrder(int64_t units, int64_t lanes, bool shuffle, uint64_t seed);

  [[nodiscard]] int64_t lanes() const { return lanes_; }
  [[nodiscard]] int64_t stride() const { return stride_; }
  [[nodiscard]] int64_t epoch_of(int64_t slot) const { return slot / stride_; }
  /// The unit at a slot, or -1 at an empty one. Thread-safe.
  [[nodiscard]] int64_t unit_at(int64_t slot) const;

 private:
  int64_t units_;
  int64_t lanes_;
  int64_t stride_;
  bool shuffle_;
  uint64_t seed_;
  // The orders of the epochs that lanes are in: two at most in practice.
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<int64_t, std::vector<uint32_t>>> orders_;
};

/// One lane's stream of rows. Not thread-safe by itself.
class LaneStream {
 public:
  enum class Status { row, end, stopped };

  struct Shared {
    const Corpus& corpus;
    const DataOptions& options;
    const Encoder& encoder;
    const UnitOrder& order;
    BadData& bad;
    const std::atomic<bool>& stop;  ///< asks for a quick return
  };

  LaneStream(Shared shared, const LanePosition& start) : shared_(shared), position_(start) {}

  /// Fills the row with the lane's next ids. `end`: the last epoch ended before the row was full, and what was left is
  /// dropped. Throws Error for bad data under OnBadData::stop, ids outside the vocabulary, a source without any text.
  Status fill(std::span<int32_t> row);
  /// Behind the last full row.
  [[nodiscard]] const LanePosition& position() const { return committed_; }
  /// Ids of a row that could not be filled, for messages.
  [[nodiscard]] int64_t left_over() const { return left_over_; }

 private:
  Status load_document();
  bool open_unit();
  bool take(const Entry& entry);
  void check_ids() const;
  void resume_document();

  Shared shared_;
  LanePosition position_;  // of the document in ids_, as far as it is used
  LanePosition committed_ = position_;
  std::unique_ptr<UnitReader> unit_;
  bool loaded_ = false;  // ids_ is the document at position_
  std::vector<int32_t> ids_;
  int64_t empty_slots_ = 0;  // since the last id
  int64_t left_over_ = 0;
};

}  // namespace mythos
