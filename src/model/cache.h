// Keys and values of positions already seen: one entry per block, and for the recurrent block one per loop index.
#pragma once

#include "kernels/rotary.h"

#include <vector>

namespace mythos {

/// MLA keeps the normalised c_kv [B, S, kv_lora_rank] and the rotated shared key [B, S, rope]; GQA keeps the rotated k
/// and v [B, S, Hkv, head_dim]. Storage grows by doubling, so that appending a token rarely copies.
class CacheEntry {
 public:
  struct Pair {
    at::Tensor first, second;
  };
  /// Appends along dimension 1 and returns views of everything kept.
  Pair append(const at::Tensor& first, const at::Tensor& second);
  /// Appends the newest position of another entry, which is at least one longer.
  void append_newest_of(const CacheEntry& other);
  [[nodiscard]] int64_t bytes() const;

 private:
  int64_t length_ = 0;
  at::Tensor first_, second_;
};

/// Of one text, or of a batch whose texts have the same length. Holds for one number of loops.
class KvCache {
 public:
  /// Positions kept so far: the next token's position.
  [[nodiscard]] int64_t length() const { return length_; }
  void advance(int64_t positions) { length_ += positions; }
  /// Throws Error if positions were made with another number of loops: the caches of loops that did not run lack them.
  void require_loops(int64_t loops);
  CacheEntry& prelude(int64_t layer) { return entry(prelude_, layer); }
  CacheEntry& loop(int64_t t) { return entry(loop_, t); }
  CacheEntry& coda(int64_t layer) { return entry(coda_, layer); }
  [[nodiscard]] int64_t bytes() const;

 private:
  static CacheEntry& entry(std::vector<CacheEntry>& list, int64_t i);

  int64_t length_ = 0, loops_ = 0;
  std::vector<CacheEntry> prelude_, loop_, coda_;
};

/// Where texts of a batch stand while a block looks at them: their positions, and what is kept of those before.
struct Place {
  RotaryTable::Slice positions;
  CacheEntry* cache = nullptr;
};

/// The places of a batch: one that all rows share, or one for each row, where texts of different lengths go on
/// together.
class Places {
 public:
  Places(const RotaryTable::Slice& positions, KvCache* cache) { add(positions, cache); }
  Places() = default;
  void add(const RotaryTable::Slice& positions, KvCache* cache) {
    positions_.push_back(positions);
    caches_.push_back(cache);
  }
  [[nodiscard]] size_t size() const { return positions_.size(); }
  [[nodiscard]] bool cached() const { return caches_.front() != nullptr; }
  [[nodiscard]] KvCache& cache(size_t row) const { return *caches_[row]; }
  [[nodiscard]] std::vector<Place> prelude(int64_t layer) const;
  [[nodiscard]] std::vector<Place> loop(int64_t t) const;
  [[nodiscard]] std::vector<Place> coda(int64_t layer) const;
  /// Those of some rows alone.
  [[nodiscard]] Places of(const std::vector<int64_t>& rows) const;

 private:
  template <class Entry>
  [[nodiscard]] std::vector<Place> each(const Entry& entry) const {
    std::vector<Place> places;
    for (size_t i = 0; i < size(); ++i) {
      places.push_back({positions_[i], caches_[i] != nullptr ? entry(*caches_[i]) : nullptr});
    }
    return places;
  }

  std::vector<RotaryTable::Slice> positions_;
  std::vector<KvCache*> caches_;
};

}  // namespace mythos
