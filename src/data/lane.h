// A lane: its units in order, their documents encoded and joined, cut into rows.
#pragma once

#include "data/corpus.h"
#include "data/position.h"
#include "data/sequence.h"

#include <memory>
#include <span>
#include <stop_token>
#include <vector>

namespace mythos {

/// One lane's documents of one source as a stream of ids. Not thread-safe by itself.
class LaneStream {
 public:
  enum class Status { row, end };

  struct Shared {
    const Corpus& corpus;
    const DataOptions& options;
    const Encoder& encoder;
    const UnitSequence& sequence;
    BadData& bad;
    std::stop_token stop;
  };

  LaneStream(Shared shared, const LanePosition& start) : shared_(std::move(shared)), position_(start) {}

  /// Fills the row with the lane's next ids. `end`: the last epoch ended before the row was full, and what was left is
  /// dropped. Throws Error for bad data under OnBadData::stop, ids outside the vocabulary, a source without any text;
  /// Stopped if that is asked for.
  Status fill(std::span<int32_t> row);
  /// Behind the last full row.
  [[nodiscard]] const LanePosition& position() const { return committed_; }
  /// Notes in the position that nothing more will come.
  void set_ended() { committed_.ended = true; }
  /// Ids of a row that could not be filled, for messages.
  [[nodiscard]] int64_t left_over() const { return left_over_; }

 private:
  Status load_document();
  bool open_unit();
  void open_next_early();
  bool take(const Entry& entry);
  void check_ids() const;
  void resume_document();

  Shared shared_;
  LanePosition position_;  // of the document in ids_, as far as it is used
  LanePosition committed_ = position_;
  std::unique_ptr<UnitReader> unit_;
  // The lane's next unit, being fetched already.
  int64_t early_slot_ = -1;
  std::unique_ptr<UnitReader> early_;
  bool loaded_ = false;  // ids_ is the document at position_
  std::vector<int32_t> ids_;
  int64_t empty_slots_ = 0;  // since the last id
  int64_t left_over_ = 0;
};

/// Which of several sources gives global row `row`: in every stretch of rows each gives nearly its share (a
/// golden-ratio sequence). `open[s]`: the source has rows left; at least one does.
size_t source_of_row(uint64_t row, std::span<const double> weights, const std::vector<bool>& open);

/// One lane's rows, from one source or mixed from several.
class Lane {
 public:
  struct State {
    int64_t rows = 0;  ///< handed out by this lane
    std::vector<LanePosition> sources;
  };

  Lane(int64_t lane, int64_t lanes, std::vector<double> weights, std::vector<LaneStream> sources, int64_t rows);

  /// As LaneStream::fill; a source that has ended leaves its turns to the others.
  LaneStream::Status fill(std::span<int32_t> row);
  [[nodiscard]] State state() const;

 private:
  int64_t lane_;
  int64_t lanes_;
  std::vector<double> weights_;
  std::vector<LaneStream> sources_;
  std::vector<bool> open_;
  int64_t rows_;
};

}  // namespace mythos
