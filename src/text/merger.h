// Byte-pair merging of one piece (Sennrich et al., 2016, on bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/piece_table.h"
#include "text/vocabulary.h"

namespace mythos {

/// Merges the pair of lowest rank, the leftmost of these, again and again until no pair is left to merge.
///
/// Two facts about this order carry what follows. (1) As long as nothing merges across the two ends of a stretch, the
/// stretch goes through the same states as it would alone. So of all pairs that spell a token only one ever meets: the
/// one that is left last when the token itself is encoded. (2) Therefore a row of tokens is what its text encodes to
/// exactly if that holds for each two neighbours: the first merge across a boundary would also happen in the two beside
/// it alone.
class Merger {
 public:
  /// Pieces up to this length merge by scanning, longer ones with a heap, a window of the piece at a time.
  static constexpr size_t scan_limit = 48;
  /// The window; larger ones are tried where the ends of these cannot be joined (by fact 2).
  static constexpr size_t usual_window = 1024;
  /// A longer piece is cut after so many bytes, so that positions fit 32 bits.
  static constexpr size_t piece_limit = size_t{1} << 30;

  struct Node {
    int32_t id;
    int32_t merged;  // what it becomes with the next one
    uint32_t rank;   // of that pair
    uint32_t previous, next;
  };
  /// What a stretch of text encodes to, and where in it each token starts.
  struct Tokens {
    std::vector<int32_t> ids;
    std::vector<uint32_t> starts;
  };
  /// What one thread needs for long pieces.
  struct Scratch {
    std::vector<Node> nodes;
    std::vector<uint64_t> sorted, heap;
    Tokens here, next, pair;
    /// The work done in long pieces, for tests: bytes given to the heap, merges, candidates looked at.
    uint64_t bytes = 0, merges = 0, candidates = 0;
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
  static constexpr uint64_t no_pair = ~uint64_t{0};
  struct Result {
    uint32_t rank = no_rank;
    int32_t id = -1;
  };
  struct Slot {
    uint64_t pair = no_pair;
    Result result;
  };

  [[nodiscard]] static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  [[nodiscard]] static uint64_t hash_of(uint64_t pair) { return pair * 0x9E3779B97F4A7C15ULL; }
  // Where the pair is, or the empty slot where it would be.
  [[nodiscard]] size_t place_of(uint64_t pair) const {
    size_t i = hash_of(pair) >> shift_;
    while (slots_[i].pair != pair && slots_[i].pair != no_pair) i = (i + 1) & mask_;
    return i;
  }
  // Most pairs that are looked for do not merge. The filter, which is small enough to stay near the processor, knows
  // five in six of these.
  [[nodiscard]] bool may_merge(uint64_t pair) const {
    const uint64_t bit = hash_of(pair) >> (shift_ - filter_bits_per_slot_log2);
    return (filter_[bit / 64] >> bit % 64 & 1) != 0;
  }
  [[nodiscard]] Result find(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    return may_merge(pair) ? slots_[place_of(pair)].result : Result();  // an empty slot holds no rank
  }
  // Asks for the memory that find will read.
  void prefetch(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    if (may_merge(pair)) __builtin_prefetch(&slots_[hash_of(pair) >> shift_]);
  }
  void learn_pairs(const Vocabulary& vocabulary, const TokenTable& tokens);
  void learn_listed_pairs(const Vocabulary& vocabulary, const TokenTable& tokens);
  void reserve(size_t pairs);
  void insert(int32_t left, int32_t right, std::string_view bytes, Result result);

  void merge_by_scan(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_by_heap(std::string_view piece, Tokens& out, Scratch& s) const;
  [[nodiscard]] bool merge_by_windows(std::string_view piece, size_t window, std::vector<int32_t>& out,
                                      Scratch& s) const;
  [[nodiscard]] bool are_neighbours(std::string_view both, int32_t left, int32_t right, Scratch& s) const;

  std::array<int32_t, 256> byte_id_{};
  std::vector<Result> byte_pairs_;  // [first byte * 256 + second byte]
  HugeVector<Slot> slots_ = HugeVector<Slot>(2);
  static constexpr int filter_bits_per_slot_log2 = 1;
  std::vector<uint64_t> filter_ = std::vector<uint64_t>(1);
  size_t n_pairs_ = 0;
  size_t mask_ = 1;
  int shift_ = 63;
};

}  // namespace mythos
