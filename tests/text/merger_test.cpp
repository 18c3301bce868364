#include "text/merger.h"

#include <algorithm>
#include <set>

#include "text/splitter.h"
#include "text_testing.h"

namespace mythos {
namespace {

using Ids = std::vector<int32_t>;

// Merging as it is defined: look at all pairs, merge the first of lowest rank, again.
Ids merge_plainly(const Vocabulary& v, const TokenTable& tokens, std::string_view piece) {
  Ids ids;
  for (const char& c : piece) ids.push_back(tokens.find({&c, 1}));
  while (true) {
    int64_t best_rank = INT64_MAX;
    size_t best = 0;
    int32_t best_id = -1;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const int32_t id =
          tokens.find(v.ordinary[static_cast<size_t>(ids[i])] + v.ordinary[static_cast<size_t>(ids[i + 1])]);
      int64_t rank = id < 0 ? INT64_MAX : id;
      if (!v.merge_by_id) {
        const auto it = std::find(v.merges.begin(), v.merges.end(), std::pair(ids[i], ids[i + 1]));
        rank = it == v.merges.end() ? INT64_MAX : it - v.merges.begin();
      }
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
        best_id = id;
      }
    }
    if (best_rank == INT64_MAX) return ids;
    ids[best] = best_id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// A vocabulary with many ways to merge: random joins of the letters a to d.
Vocabulary tangled(uint64_t seed, bool by_id) {
  Vocabulary v = testing::small_vocabulary({}, std::string(o200k_pattern));
  Random random(seed);
  std::vector<int32_t> used{'a', 'b', 'c', 'd'};
  v.merge_by_id = by_id;
  for (int tries = 0; tries < 200; ++tries) {
    const int32_t left = used[random.below(used.size())];
    const int32_t right = used[random.below(used.size())];
    const std::string bytes = v.ordinary[static_cast<size_t>(left)] + v.ordinary[static_cast<size_t>(right)];
    if (bytes.size() > 9 || std::find(v.ordinary.begin(), v.ordinary.end(), bytes) != v.ordinary.end()) continue;
    used.push_back(static_cast<int32_t>(v.ordinary.size()));
    v.ordinary.push_back(bytes);
    if (!by_id)
      v.merges.insert(v.merges.begin() + static_cast<std::ptrdiff_t>(random.below(v.merges.size() + 1)), {left, right});
  }
  v.n_ordinary = static_cast<int64_t>(v.ordinary.size());
  return v;
}

TEST(Merger, ScanAndHeapFollowTheDefinition) {
  Random random(3);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Vocabulary v = tangled(seed, seed % 2 == 0);
    v.check("tangled");
    const TokenTable tokens(v.ordinary);
    const Merger merger(v, tokens);
    Merger::Scratch scratch;
    for (const size_t longest : {Merger::scan_limit, size_t{300}}) {
      for (int i = 0; i < 40; ++i) {
        std::string piece(1 + random.below(longest), 'a');
        const uint64_t letters = 1 + random.below(4);
        for (char& c : piece) c = static_cast<char>('a' + random.below(letters));
        Ids ids;
        merger.merge(piece, ids, scratch);
        EXPECT_EQ(ids, merge_plainly(v, tokens, piece)) << seed << " " << piece;
      }
    }
  }
}

TEST(Merger, T1_WorkGrowsWithTheLengthOfAPieceNotItsSquare) {
  const Vocabulary& v = testing::o200k().vocabulary();
  const TokenTable tokens(v.ordinary);
  const Merger merger(v, tokens);
  for (const std::string unit : {"a", "_", " ", "\n", "中", "0"}) {
    uint64_t work[2] = {0, 0};
    for (const size_t times : {1, 2}) {
      std::string piece;
      while (piece.size() < times * 100'000) piece += unit;
      Merger::Scratch scratch;
      Ids ids;
      merger.merge(piece, ids, scratch);
      work[times - 1] = scratch.candidates;
      EXPECT_LE(scratch.candidates, 5 * piece.size()) << unit;
      EXPECT_LE(scratch.bytes, 10 * Merger::usual_window) << unit;  // what repeats is counted, not encoded
    }
    EXPECT_LT(work[1], 2.1 * static_cast<double>(work[0])) << unit;
    EXPECT_GT(work[0], 0u);
  }
}

TEST(Merger, T1_WorkOnALongWordGrowsWithItsLength) {
  const Vocabulary& v = testing::o200k().vocabulary();
  const TokenTable tokens(v.ordinary);
  const Merger merger(v, tokens);
  Random random(8);
  for (const size_t size : {100'000, 200'000}) {
    std::string word(size, ' ');
    for (char& c : word) c = static_cast<char>('a' + random.below(26));
    Merger::Scratch scratch;
    Ids ids;
    merger.merge(word, ids, scratch);
    EXPECT_LE(scratch.bytes, size + size / 10);  // windows overlap
    EXPECT_LE(scratch.candidates, 2 * size);
    EXPECT_LE(scratch.nodes.capacity(), 2 * Merger::usual_window);
  }
}

// Whether each two neighbours are what their bytes encode to; then the whole is what its text encodes to.
void expect_neighbours_fit(const Vocabulary& v, const TokenTable& tokens, const Ids& ids) {
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t i = 0; i + 1 < ids.size(); ++i) pairs.insert({ids[i], ids[i + 1]});
  for (const auto& [left, right] : pairs) {
    EXPECT_EQ(merge_plainly(v, tokens, v.ordinary[static_cast<size_t>(left)] + v.ordinary[static_cast<size_t>(right)]),
              (Ids{left, right}));
  }
}

TEST(Merger, WindowsOfLongPiecesJoinAsIfTheyWereOne) {
  Random random(4);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Vocabulary v = tangled(seed, seed % 2 == 0);
    const TokenTable tokens(v.ordinary);
    const Merger merger(v, tokens);
    Merger::Scratch scratch;
    for (int i = 0; i < 5; ++i) {
      std::string piece(Merger::usual_window + 1 + random.below(6000), 'a');
      const uint64_t letters = 1 + random.below(4);
      for (char& c : piece) c = static_cast<char>('a' + random.below(letters));
      if (i % 2 == 1) {  // much of it repeats a few letters
        const size_t period = 1 + random.below(12);
        const size_t end = piece.size() - random.below(50);
        for (size_t k = period + random.below(300); k < end; ++k) piece[k] = piece[k - period];
      }
      Ids ids;
      merger.merge(piece, ids, scratch);
      expect_neighbours_fit(v, tokens, ids);
      std::string bytes;
      for (const int32_t id : ids) bytes += v.ordinary[static_cast<size_t>(id)];
      EXPECT_EQ(bytes, piece);
      if (seed < 4 && i == 0) {
        piece.resize(Merger::usual_window + 200);
        ids.clear();
        merger.merge(piece, ids, scratch);
        EXPECT_EQ(ids, merge_plainly(v, tokens, piece)) << seed;
      }
    }
  }
}

TEST(Merger, WindowsAreGivenUpWhereTheirEndsCannotBeJoined) {
  // Tokens far longer than a window.
  Vocabulary v = testing::small_vocabulary({}, std::string(o200k_pattern));
  std::string run = "ab";
  for (; run.size() <= 4096; run += run) v.ordinary.push_back(run);
  v.n_ordinary = static_cast<int64_t>(v.ordinary.size());
  const TokenTable tokens(v.ordinary);
  const Merger merger(v, tokens);
  for (const size_t size : {4096, 8192, 12'286, 20'000}) {
    std::string piece;
    while (piece.size() < size) piece += "ab";
    Merger::Scratch scratch;
    Ids ids;
    merger.merge(piece, ids, scratch);
    EXPECT_GT(scratch.bytes, size + Merger::usual_window / 2);
    Ids expected(size / 4096, 256 + 11);
    for (int bit = 10; bit >= 0; --bit) {
      if (size >> (bit + 1) & 1) expected.push_back(256 + bit);
    }
    EXPECT_EQ(ids, expected) << size;
  }
}

// The order of ids is not the order in which tokens can be built: "abcd" has a lower id than what it is built from.
TEST(Merger, TokensBuiltFromHigherIds) {
  const Vocabulary v =
      testing::small_vocabulary({"abcd", "xyz", "cd", "ab", "yz", "abcdxyz", "bcd", "qrs"}, std::string(o200k_pattern));
  const TokenTable tokens(v.ordinary);
  const Merger merger(v, tokens);
  Merger::Scratch scratch;
  Random random(6);
  for (int i = 0; i < 2000; ++i) {
    std::string piece(1 + random.below(20), ' ');
    for (char& c : piece) c = "abcdxyzqrs"[random.below(10)];
    Ids ids;
    merger.merge(piece, ids, scratch);
    EXPECT_EQ(ids, merge_plainly(v, tokens, piece)) << piece;
  }
}

TEST(Merger, LargeScratchIsGivenBack) {
  Merger::Scratch scratch;
  scratch.nodes.resize(3 << 20);
  scratch.heap.reserve(3 << 20);
  scratch.release_if_large();
  EXPECT_LT(scratch.nodes.capacity() + scratch.heap.capacity(), size_t{1} << 20);
}

}  // namespace
}  // namespace mythos
