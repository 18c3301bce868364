// Files to packed rows: the stream that training reads, and can go on with exactly where it stopped.
#pragma once

#include "base/json.h"
#include "data/corpus.h"
#include "data/options.h"
#include "data/position.h"

#include <cstdint>
#include <memory>
#include <span>

namespace mythos {

/// What rows come from: one corpus, or several that are mixed.
struct Sources {
  std::vector<std::shared_ptr<const Corpus>> corpora;
  std::shared_ptr<Storage> storage;  ///< whose commits are part of the position
};
/// One corpus of all sources, or with weights one for each; the held-out documents are then shared out by weight.
Sources open_sources(const DataOptions& options);

/// Hands out packed rows of seq_len + 1 ids: the input of a step is row[0 .. seq_len), its targets row[1 .. seq_len].
///
/// The rows. Unit g of the source (a Parquet row group, 1,000 documents of a text or JSONL file) belongs to lane g mod
/// lanes. A lane joins the ids of its documents (with document_separator the end-of-text id after each one) and cuts
/// them into rows that do not overlap. Null and empty documents give no ids and no separator. Rows come from the lanes
/// in turn: row i from lane i mod lanes. A lane that ends an epoch goes on into the next with the ids it has left over;
/// later epochs carry on numbering the units, so that no unit is read more often than another (see UnitSequence). There
/// are never more lanes than units. Sources with weights are mixed row by row (see source_of_row), each with lanes of
/// its own. If `epochs` is set, a lane ends with its last unit of the last epoch, drops what does not fill a row, and
/// its turn is passed over from then on; the stream ends when every lane has.
///
/// So the rows depend on the source, the tokenizer, seq_len, lanes, the separator, what is held out, and with `shuffle`
/// the seed: never on workers, prefetch, ranks or timing.
///
/// Ranks. Of the rows from where it began, this loader hands out the rank-th of every `world`; each rank gets equally
/// many (the last group is dropped if it is not whole). Without end (epochs = 0) it reads only the lanes whose rows it
/// hands out, which is a share of 1/world of the source where world divides lanes.
class RowLoader {
 public:
  /// Begins at the source's first row, or goes on behind `position`. Throws Error for options out of their range, no
  /// end-of-text id or a vocabulary too small for it, a source with less text than one row, more ranks than lanes, and
  /// a position that belongs to other data or settings.
  /// Nothing is read ahead before the first row is asked for.
  RowLoader(Sources sources, DataOptions options, Encoder encoder, const Json* position = nullptr);
  RowLoader(std::shared_ptr<const Corpus> corpus, DataOptions options, Encoder encoder, const Json* position = nullptr);
  RowLoader(DataOptions options, Encoder encoder, const Json* position = nullptr);
  /// Returns as soon as the documents being encoded now are done.
  ~RowLoader();
  RowLoader(const RowLoader&) = delete;
  RowLoader& operator=(const RowLoader&) = delete;

  /// Fills `row` (seq_len + 1 ids); false at the end. What goes wrong in a loading thread is thrown here, at the row
  /// where it happened, and again at every later call; Stopped if a signal asks for it while waiting. To be called from
  /// one thread, like what follows.
  bool next(std::span<int32_t> row);

  /// Where the stream stands behind the last row that next() handed out; what has been read ahead does not count.
  [[nodiscard]] Json position() const;
  /// Global rows handed out to all ranks, those before a restored position included.
  [[nodiscard]] int64_t rows() const;
  /// Of the lanes that this loader reads, up to position().
  [[nodiscard]] DataTotals totals() const;
  /// The lowest epoch that a lane is in, from 0 (known to be over when its end was met).
  [[nodiscard]] int64_t epoch() const;
  /// Lanes in use: data.lanes, or the number of units if that is less.
  [[nodiscard]] int64_t lanes() const;
  /// Seconds that next() spent waiting for rows.
  [[nodiscard]] double seconds_waited() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mythos
