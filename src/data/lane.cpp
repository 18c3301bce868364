#include "data/lane.h"

#include "base/error.h"
#include "base/units.h"
#include "data/shuffled.h"

#include <algorithm>
#include <utility>

namespace mythos {

// Opens the unit at position_, or the next one of this lane that has something to read. False behind the last epoch.
bool LaneStream::open_unit() {
  const UnitSequence& sequence = shared_.sequence;
  const Corpus::Place begin = shared_.corpus.training_begin();
  for (;; position_.slot += sequence.lanes(), position_.document = 0, ++empty_slots_) {
    const UnitSequence::Unit unit = sequence.at(position_.slot, shared_.stop);
    if (shared_.options.epochs > 0 && unit.epoch >= shared_.options.epochs) return false;
    // As many slots of one lane as an epoch has hold every unit once.
    if (const auto units = sequence.units(); units && empty_slots_ > *units + sequence.lanes()) {
      throw usage_error(fmt::format("{} has no document with text to train on", shared_.corpus.name()),
                        "give a source with text in it");
    }
    const Corpus::Place place{unit.file, unit.part, 0};
    if (unit.empty || (place < begin && (unit.file != begin.file || unit.part != begin.part))) continue;
    position_.bookmark = std::make_shared<const Json>(sequence.bookmark(position_.slot));
    unit_ = early_ && early_slot_ == position_.slot ? std::move(early_)
                                                    : shared_.corpus.read(unit.file, unit.part, shared_.stop);
    early_.reset();
    const int64_t held_out = unit.file == begin.file && unit.part == begin.part ? begin.document : 0;
    unit_->skip(held_out);
    if (shared_.options.shuffle) unit_ = shuffled(std::move(unit_), sequence.document_seed(unit));
    position_.document = std::max(position_.document, held_out);
    unit_->skip(position_.document - held_out);
    if (shared_.corpus.file(unit.file).fetches_early(unit.part)) open_next_early();
    return true;
  }
}

void LaneStream::open_next_early() {
  const UnitSequence& sequence = shared_.sequence;
  early_slot_ = position_.slot + sequence.lanes();
  const UnitSequence::Unit unit = sequence.at(early_slot_, shared_.stop);
  if (unit.empty || (shared_.options.epochs > 0 && unit.epoch >= shared_.options.epochs)) return;
  if (Corpus::Place{unit.file, unit.part, 0} < shared_.corpus.training_begin()) return;
  if (!shared_.corpus.file(unit.file).fetches_early(unit.part)) return;
  early_ = shared_.corpus.read(unit.file, unit.part, shared_.stop);
}

void LaneStream::check_ids() const {
  const int64_t bound = shared_.options.vocab_size;
  if (bound <= 0 || ids_.empty()) return;
  // As unsigned numbers negative ids are large.
  uint32_t largest = 0;
  for (const int32_t id : ids_) largest = std::max(largest, static_cast<uint32_t>(id));
  if (largest >= bound) {
    throw usage_error(fmt::format("the tokenizer gives id {}, outside the model's vocabulary of {}",
                                  static_cast<int32_t>(largest), with_commas(bound)),
                      fmt::format("set model.vocab_size to {} or more", static_cast<int64_t>(largest) + 1));
  }
}

// Encodes the entry into ids_; false if that gives no ids.
bool LaneStream::take(const Entry& entry) {
  ids_.clear();
  if (entry.kind == Entry::Kind::tokens) {
    ids_.assign(entry.ids.begin(), entry.ids.end());
  } else if (entry.kind == Entry::Kind::text) {
    shared_.encoder.encode(entry.text, ids_);
  }
  if (ids_.empty()) return false;
  if (shared_.options.document_separator) ids_.push_back(*shared_.encoder.end_of_text);
  check_ids();
  return true;
}

// Encodes the document that a restored position is in the middle of; it is counted already.
void LaneStream::resume_document() {
  const int64_t slot = position_.slot;
  const int64_t wanted = position_.document;
  Entry entry;
  if (!open_unit() || position_.slot != slot || position_.document != wanted || !unit_->next(entry) || !take(entry) ||
      static_cast<int64_t>(ids_.size()) <= position_.token) {
    throw failure(fmt::format("the data is not what it was: document {} of unit {} has fewer than {} tokens now",
                              wanted, slot, position_.token + 1),
                  "put the files back as they were, or begin anew with --fresh");
  }
  loaded_ = true;
}

// Moves to the next document that has ids.
LaneStream::Status LaneStream::load_document() {
  if (loaded_) ++position_.document;
  loaded_ = false;
  position_.token = 0;
  Entry entry;
  for (;;) {
    if (shared_.stop.stop_requested()) throw Stopped("reading was stopped");
    if (!unit_ && !open_unit()) return Status::end;
    if (!unit_->next(entry)) {
      unit_.reset();
      position_.slot += shared_.sequence.lanes();
      position_.document = 0;
      ++empty_slots_;
      continue;
    }
    position_.totals.entries += entry.count;
    if (entry.kind == Entry::Kind::damaged) {
      position_.totals.skipped += entry.count;
      shared_.bad.report(entry.problem);
    } else if (take(entry)) {
      position_.totals.documents += 1;
      position_.totals.bytes +=
          entry.kind == Entry::Kind::tokens ? entry.text_bytes : static_cast<int64_t>(entry.text.size());
      empty_slots_ = 0;
      loaded_ = true;
      return Status::row;
    }
    position_.document += 1;
  }
}

LaneStream::Status LaneStream::fill(std::span<int32_t> row) {
  if (!loaded_ && position_.token > 0) resume_document();
  size_t filled = 0;
  while (filled < row.size()) {
    if (!loaded_ || position_.token == static_cast<int64_t>(ids_.size())) {
      const Status status = load_document();
      if (status != Status::row) {
        left_over_ = static_cast<int64_t>(filled);
        return status;
      }
    }
    const auto rest = std::span(ids_).subspan(static_cast<size_t>(position_.token));
    const size_t n = std::min(rest.size(), row.size() - filled);
    std::copy_n(rest.begin(), n, row.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += n;
    position_.token += static_cast<int64_t>(n);
  }
  committed_ = position_;
  if (committed_.token == static_cast<int64_t>(ids_.size())) {
    // The document is used up: the next row begins with the next one, and this one need not be encoded again.
    ++committed_.document;
    committed_.token = 0;
  }
  return Status::row;
}

size_t source_of_row(uint64_t row, std::span<const double> weights, const std::vector<bool>& open) {
  double sum = 0;
  for (size_t s = 0; s < weights.size(); ++s) sum += open[s] ? weights[s] : 0;
  const double u = static_cast<double>((row * UINT64_C(0x9E3779B97F4A7C15)) >> 11) * 0x1p-53 * sum;
  double below = 0;
  size_t last = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    if (!open[s]) continue;
    below += weights[s];
    last = s;
    if (u < below) break;
  }
  return last;
}

Lane::Lane(int64_t lane, int64_t lanes, std::vector<double> weights, std::vector<LaneStream> sources, int64_t rows)
    : lane_(lane), lanes_(lanes), weights_(std::move(weights)), sources_(std::move(sources)), rows_(rows) {
  for (const LaneStream& source : sources_) open_.push_back(!source.position().ended);
  if (weights_.empty()) weights_.assign(sources_.size(), 1.0);
}

LaneStream::Status Lane::fill(std::span<int32_t> row) {
  while (std::ranges::find(open_, true) != open_.end()) {
    const size_t s = source_of_row(static_cast<uint64_t>(rows_ * lanes_ + lane_), weights_, open_);
    if (sources_[s].fill(row) == LaneStream::Status::row) {
      ++rows_;
      return LaneStream::Status::row;
    }
    sources_[s].set_ended();
    open_[s] = false;
  }
  return LaneStream::Status::end;
}

Lane::State Lane::state() const {
  State state{rows_, {}};
  for (const LaneStream& source : sources_) state.sources.push_back(source.position());
  return state;
}

}  // namespace mythos
