// Tables from a short piece of bytes to what it encodes to.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/huge_pages.h"

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

namespace mythos {

/// Up to 15 bytes and their number, in two words. `hi` is 0 for no key.
struct ShortKey {
  static constexpr size_t max_size = 15;
  uint64_t lo = 0;
  uint64_t hi = 0;

  bool operator==(const ShortKey&) const = default;

  /// `readable`: how many bytes may be read at p (at least n); 16 and more make this fast.
  static ShortKey of(const char* p, size_t n, size_t readable) {
    ShortKey key;
    if (readable >= 16) {
      // Ones for the n bytes to keep, then zeros.
      static constexpr std::array<uint64_t, 4> ones_then_zeros = {~uint64_t{0}, ~uint64_t{0}, 0, 0};
      const char* const mask = reinterpret_cast<const char*>(ones_then_zeros.data()) + 16 - n;
      uint64_t keep_lo, keep_hi;
      std::memcpy(&keep_lo, mask, 8);
      std::memcpy(&keep_hi, mask + 8, 8);
      std::memcpy(&key.lo, p, 8);
      std::memcpy(&key.hi, p + 8, 8);
      key.lo &= keep_lo;
      key.hi &= keep_hi;
    } else {
      std::array<char, 16> bytes{};
      std::memcpy(bytes.data(), p, n);
      std::memcpy(&key.lo, bytes.data(), 8);
      std::memcpy(&key.hi, bytes.data() + 8, 8);
    }
    key.hi |= uint64_t{n} << 56;
    return key;
  }

  [[nodiscard]] uint64_t hash() const {
    __extension__ using Wide = unsigned __int128;
    const auto product = static_cast<Wide>(lo ^ 0x9E3779B97F4A7C15ULL) * (hi ^ 0xD1B54A32D192ED03ULL);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

static_assert(std::endian::native == std::endian::little, "the length sits in the last byte of the key");

/// Token bytes -> id, read only once built.
class TokenTable {
 public:
  TokenTable() = default;
  /// Tokens by id; empty ones are left out. Keeps views into `tokens`' bytes through `bytes_of` no longer than that.
  template <class Range>
  explicit TokenTable(const Range& tokens);

  /// The id of the token with exactly these bytes, or -1.
  [[nodiscard]] int32_t find(std::string_view bytes) const {
    if (bytes.size() <= ShortKey::max_size) {
      const ShortKey key = ShortKey::of(bytes.data(), bytes.size(), bytes.size());
      return find_short(key, key.hash());
    }
    return find_long(bytes);
  }
  /// Asks for the memory that find_short will read.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&short_[hash & short_mask_]); }
  [[nodiscard]] int32_t find_short(const ShortKey& key, uint64_t hash) const {
    for (size_t i = hash & short_mask_;; i = (i + 1) & short_mask_) {
      const ShortSlot& s = short_[i];
      if (s.key == key) return s.id;
      if (s.key.hi == 0) return -1;
    }
  }
  [[nodiscard]] int32_t find_long(std::string_view bytes) const {
    if (bytes.size() > longest_) return -1;
    const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    for (size_t i = hash & long_mask_;; i = (i + 1) & long_mask_) {
      const LongSlot& s = long_[i];
      if (s.id < 0) return -1;
      if (s.bytes == bytes) return s.id;
    }
  }
  /// Bytes of the longest token.
  [[nodiscard]] size_t longest() const { return longest_; }

 private:
  struct ShortSlot {
    ShortKey key;
    int32_t id = -1;
  };
  struct LongSlot {
    std::string_view bytes;
    int32_t id = -1;
  };
  HugeVector<ShortSlot> short_ = HugeVector<ShortSlot>(1);
  HugeVector<LongSlot> long_ = HugeVector<LongSlot>(1);
  size_t short_mask_ = 0;
  size_t long_mask_ = 0;
  size_t longest_ = 0;
};

template <class Range>
TokenTable::TokenTable(const Range& tokens) {
  size_t n_short = 0;
  size_t n_long = 0;
  for (const std::string_view t : tokens) {
    if (t.empty()) continue;
    ++(t.size() <= ShortKey::max_size ? n_short : n_long);
    longest_ = t.size() > longest_ ? t.size() : longest_;
  }
  short_.assign(std::bit_ceil(2 * n_short + 1), {});
  long_.assign(std::bit_ceil(2 * n_long + 1), {});
  short_mask_ = short_.size() - 1;
  long_mask_ = long_.size() - 1;
  int32_t id = -1;
  for (const std::string_view t : tokens) {
    ++id;
    if (t.empty()) continue;
    if (t.size() <= ShortKey::max_size) {
      const ShortKey key = ShortKey::of(t.data(), t.size(), t.size());
      size_t i = key.hash() & short_mask_;
      while (short_[i].key.hi != 0 && short_[i].key != key) i = (i + 1) & short_mask_;
      short_[i] = {key, id};
    } else {
      size_t i = XXH3_64bits(t.data(), t.size()) & long_mask_;
      while (long_[i].id >= 0 && long_[i].bytes != t) i = (i + 1) & long_mask_;
      long_[i] = {t, id};
    }
  }
}

}  // namespace mythos
