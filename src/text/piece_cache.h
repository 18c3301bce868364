// What short pieces encoded to, remembered by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "text/huge_pages.h"
#include "text/piece_table.h"

namespace mythos {

/// Two direct-mapped tables, in which the newest wins: a small one, near the processor, of pieces of up to three ids,
/// and a larger one of pieces that had to be merged.
class PieceCache {
 public:
  /// 32 bytes. The unused ids are 0, and the key of an empty entry is no piece's.
  struct Near {
    static constexpr uint32_t max_ids = 3;
    ShortKey key;
    std::array<int32_t, max_ids> ids{};
    uint32_t n = 0;
  };
  struct alignas(64) Far {
    static constexpr uint32_t max_ids = 11;
    ShortKey key;
    uint32_t n = 0;
    std::array<int32_t, max_ids> ids{};
  };

  [[nodiscard]] Near& near(uint64_t hash) { return near_[hash >> (64 - near_bits)]; }
  [[nodiscard]] Far& far(uint64_t hash) { return far_[hash >> (64 - far_bits)]; }

  /// ids: at least one.
  void remember(const ShortKey& key, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() <= Near::max_ids) fill(near(hash), key, ids);
  }
  void remember_merged(const ShortKey& key, uint64_t hash, std::span<const int32_t> ids) {
    remember(key, hash, ids);
    if (ids.size() <= Far::max_ids) fill(far(hash), key, ids);
  }

 private:
  static constexpr int near_bits = 13;  // 256 KiB
  static constexpr int far_bits = 15;   // 2 MiB

  template <class Entry>
  static void fill(Entry& entry, const ShortKey& key, std::span<const int32_t> ids) {
    entry.key = key;
    entry.n = static_cast<uint32_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

  HugeVector<Near> near_ = HugeVector<Near>(size_t{1} << near_bits);
  HugeVector<Far> far_ = HugeVector<Far>(size_t{1} << far_bits);
};

static_assert(sizeof(PieceCache::Near) == 32 && sizeof(PieceCache::Far) == 64);

}  // namespace mythos
