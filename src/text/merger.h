// Byte-pair merging of one piece (Sennrich et al., 2016, on bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/piece_table.h"
#include "text/vocabulary.h"

namespace mythos {

class Merger {
 public:
  /// Pieces up to this length merge by scanning, longer ones with a heap: n log n, no recursion.
  static constexpr size_t scan_limit = 48;
  /// A longer piece is cut after so many bytes, so that positions fit 32 bits.
  static constexpr size_t piece_limit = size_t{1} << 30;

  struct Node {
    int32_t id;
    uint32_t rank;  // of the pair that starts here
    uint32_t previous, next;
  };
  /// What one thread needs for long pieces.
  struct Scratch {
    std::vector<Node> nodes;
    std::vector<uint64_t> sorted, heap;
    /// Merges done in long pieces, and candidates looked at: the work, for tests.
    uint64_t merges = 0, candidates = 0;
    void release_if_large();
  };

  Merger() = default;
  /// `tokens` holds all ordinary tokens of the (checked) vocabulary.
  Merger(const Vocabulary& vocabulary, const TokenTable& tokens);

  /// Appends the ids of a piece of at least one byte and at most piece_limit.
  void merge(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const;

  [[nodiscard]] int32_t byte_id(unsigned char byte) const { return byte_id_[byte]; }

 private:
  static constexpr uint32_t no_rank = 0xFFFFFFFF;
  struct Result {
    uint32_t rank = no_rank;
    int32_t id = -1;
  };
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    Result result;
  };

  [[nodiscard]] static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  [[nodiscard]] Result find(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t i = (pair * 0x9E3779B97F4A7C15ULL) >> shift_;; i = (i + 1) & mask_) {
      const Slot& s = slots_[i];
      if (s.pair == pair) return s.result;
      if (s.pair == ~uint64_t{0}) return {};
    }
  }
  void insert(int32_t left, int32_t right, Result result);
  void merge_by_scan(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_by_heap(std::string_view piece, std::vector<int32_t>& out, Scratch& s) const;

  std::array<int32_t, 256> byte_id_{};
  std::vector<Result> byte_pairs_;  // [first byte * 256 + second byte]
  std::vector<Slot> slots_ = std::vector<Slot>(2);
  size_t mask_ = 1;
  int shift_ = 63;
};

}  // namespace mythos
