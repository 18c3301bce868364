// Keys and values of positions already seen: one entry per block, and for the recurrent block one per loop index.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace mythos {

/// MLA keeps c_kv [B, S, kv_lora_rank] and the rotated shared key [B, S, rope]; GQA keeps k and v [B, S, Hkv,
/// head_dim]. Storage grows by doubling, so that appending a token rarely copies.
class CacheEntry {
 public:
  struct Pair {
    at::Tensor first, second;
  };
  /// Appends along dimension 1 and returns views of everything kept.
  Pair append(const at::Tensor& first, const at::Tensor& second);
  [[nodiscard]] int64_t bytes() const;

 private:
  int64_t length_ = 0;
  at::Tensor first_, second_;
};

class KvCache {
 public:
  /// Positions kept so far: the next token's position.
  [[nodiscard]] int64_t length() const { return length_; }
  void advance(int64_t positions) { length_ += positions; }
  CacheEntry& prelude(int64_t layer) { return entry(prelude_, layer); }
  CacheEntry& loop(int64_t t) { return entry(loop_, t); }
  CacheEntry& coda(int64_t layer) { return entry(coda_, layer); }
  [[nodiscard]] int64_t bytes() const;

 private:
  static CacheEntry& entry(std::vector<CacheEntry>& list, int64_t i);

  int64_t length_ = 0;
  std::vector<CacheEntry> prelude_, loop_, coda_;
};

}  // namespace mythos
