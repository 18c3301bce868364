#include "data/shuffled.h"

#include "base/random.h"
#include "data/sequence.h"

#include <utility>
#include <vector>

namespace mythos {
namespace {

class ShuffledUnit : public UnitReader {
 public:
  ShuffledUnit(std::unique_ptr<UnitReader> reader, uint64_t seed) : reader_(std::move(reader)), seed_(seed) {}

  bool next(Entry& entry) override {
    if (at_ == held_.size() && !load()) return false;
    const Held& held = held_[order_[at_++]];
    entry = held.entry;
    entry.text = held.text;
    entry.ids = held.ids;
    return true;
  }

  void skip(int64_t count) override {
    // Whole windows need not be held.
    while (count >= shuffle_window && at_ == held_.size()) {
      reader_->skip(shuffle_window);
      ++window_;
      count -= shuffle_window;
    }
    UnitReader::skip(count);
  }

 private:
  struct Held {
    Entry entry;
    std::string text;
    std::vector<int32_t> ids;
  };

  bool load() {
    held_.clear();
    at_ = 0;
    Entry entry;
    while (std::ssize(held_) < shuffle_window && reader_->next(entry)) {
      Held& held = held_.emplace_back();
      held.text = entry.text;
      held.ids.assign(entry.ids.begin(), entry.ids.end());
      held.entry = std::move(entry);
      entry = {};
    }
    order_ = permutation(held_.size(), derive_seed(seed_, window_++, "window"));
    return !held_.empty();
  }

  std::unique_ptr<UnitReader> reader_;
  uint64_t seed_;
  uint64_t window_ = 0;
  std::vector<Held> held_;
  std::vector<uint32_t> order_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<UnitReader> shuffled(std::unique_ptr<UnitReader> reader, uint64_t seed) {
  return std::make_unique<ShuffledUnit>(std::move(reader), seed);
}

}  // namespace mythos
