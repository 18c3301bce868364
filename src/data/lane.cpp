#include "data/lane.h"

#include "base/error.h"
#include "base/random.h"
#include "base/units.h"

#include <algorithm>
#include <numeric>

namespace mythos {

UnitOrder::UnitOrder(int64_t units, int64_t lanes, bool shuffle, uint64_t seed)
    : units_(units),
      lanes_(std::max<int64_t>(1, std::min(lanes, units))),
      stride_(std::max<int64_t>(units, 1)),
      shuffle_(shuffle),
      seed_(seed) {
  while (std::gcd(stride_, lanes_) != 1) ++stride_;
}

int64_t UnitOrder::unit_at(int64_t slot) const {
  const int64_t place = slot % stride_;
  if (place >= units_) return -1;
  if (!shuffle_) return place;
  const int64_t epoch = epoch_of(slot);
  const std::lock_guard lock(mutex_);
  for (const auto& [known, order] : orders_) {
    if (known == epoch) return order[static_cast<size_t>(place)];
  }
  if (orders_.size() == 2) orders_.erase(orders_.begin());
  auto& [key, order] = orders_.emplace_back(epoch, std::vector<uint32_t>(static_cast<size_t>(units_)));
  std::iota(order.begin(), order.end(), 0U);
  Random random(derive_seed(seed_, static_cast<uint64_t>(epoch), "data.shuffle"));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order[static_cast<size_t>(place)];
}

// Opens the unit at position_, or the next one of this lane that has something to read. False behind the last epoch.
bool LaneStream::open_unit() {
  const UnitOrder& order = shared_.order;
  const Corpus::Place begin = shared_.corpus.training_begin();
  for (;; position_.slot += order.lanes(), position_.document = 0, ++empty_slots_) {
    if (shared_.options.epochs > 0 && order.epoch_of(position_.slot) >= shared_.options.epochs) return false;
    // As many slots of one lane as an epoch has hold every unit once.
    if (empty_slots_ > order.stride()) {
      throw usage_error(fmt::format("{} has no document with text to train on", shared_.options.source),
                        "give a source with text in it");
    }
    const int64_t unit = order.unit_at(position_.slot);
    if (unit < begin.unit) continue;
    const int64_t first = std::max(position_.document, unit == begin.unit ? begin.document : 0);
    unit_ = shared_.corpus.read(unit);
    unit_->skip(first);
    position_.document = first;
    return true;
  }
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
  if (entry.kind != Entry::Kind::text) return false;
  shared_.encoder.encode(entry.text, ids_);
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
                              wanted, shared_.order.unit_at(slot), position_.token + 1),
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
    if (shared_.stop.load(std::memory_order_relaxed)) return Status::stopped;
    if (!unit_ && !open_unit()) return Status::end;
    if (!unit_->next(entry)) {
      unit_.reset();
      position_.slot += shared_.order.lanes();
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
      position_.totals.bytes += static_cast<int64_t>(entry.text.size());
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

}  // namespace mythos
