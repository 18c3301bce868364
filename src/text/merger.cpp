#include "text/merger.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace mythos {

void Merger::Scratch::release_if_large() {
  constexpr size_t keep = size_t{1} << 20;
  if (nodes.capacity() > keep) nodes = std::vector<Node>();
  if (sorted.capacity() > keep) sorted = std::vector<uint64_t>();
  if (heap.capacity() > keep) heap = std::vector<uint64_t>();
}

Merger::Merger(const Vocabulary& vocabulary, const TokenTable& tokens) {
  struct Merge {
    int32_t left, right;
    Result result;
  };
  std::vector<Merge> merges;
  if (vocabulary.merge_by_id) {
    merges.reserve(3 * vocabulary.ordinary.size());
    for (size_t id = 0; id < vocabulary.ordinary.size(); ++id) {
      const std::string_view bytes = vocabulary.ordinary[id];
      for (size_t cut = 1; cut < bytes.size(); ++cut) {
        const int32_t left = tokens.find(bytes.substr(0, cut));
        if (left < 0) continue;
        const int32_t right = tokens.find(bytes.substr(cut));
        if (right < 0) continue;
        merges.push_back({left, right, {static_cast<uint32_t>(id), static_cast<int32_t>(id)}});
      }
    }
  } else {
    merges.reserve(vocabulary.merges.size());
    std::string bytes;
    for (const auto& [left, right] : vocabulary.merges) {
      bytes = vocabulary.ordinary[static_cast<size_t>(left)] + vocabulary.ordinary[static_cast<size_t>(right)];
      merges.push_back({left, right, {static_cast<uint32_t>(merges.size()), tokens.find(bytes)}});
    }
  }
  slots_.assign(std::bit_ceil(2 * merges.size() + 2), {});
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
  for (const Merge& m : merges) insert(m.left, m.right, m.result);

  for (size_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_id_[b] = tokens.find({&c, 1});
  }
  byte_pairs_.resize(65536);
  for (size_t i = 0; i < byte_pairs_.size(); ++i) byte_pairs_[i] = find(byte_id_[i >> 8], byte_id_[i & 255]);
}

void Merger::insert(int32_t left, int32_t right, Result result) {
  const uint64_t pair = pair_of(left, right);
  size_t i = (pair * 0x9E3779B97F4A7C15ULL) >> shift_;
  while (slots_[i].pair != ~uint64_t{0} && slots_[i].pair != pair) i = (i + 1) & mask_;
  if (slots_[i].pair != pair) slots_[i] = {pair, result};  // the first listed counts
}

void Merger::merge(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
  if (piece.size() <= scan_limit) {
    merge_by_scan(piece, out);
  } else {
    merge_by_heap(piece, out, scratch);
  }
}

void Merger::merge_by_scan(std::string_view piece, std::vector<int32_t>& out) const {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(piece.data());
  size_t n = piece.size();
  std::array<int32_t, scan_limit> id;
  std::array<uint32_t, scan_limit> rank;   // of the pair (i, i + 1)
  std::array<int32_t, scan_limit> merged;  // what that pair becomes
  for (size_t i = 0; i < n; ++i) id[i] = byte_id_[bytes[i]];
  for (size_t i = 0; i + 1 < n; ++i) {
    const Result r = byte_pairs_[size_t{bytes[i]} << 8 | bytes[i + 1]];
    rank[i] = r.rank;
    merged[i] = r.id;
  }
  const auto look = [&](size_t i) {
    const Result r = find(id[i], id[i + 1]);
    rank[i] = r.rank;
    merged[i] = r.id;
  };
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == no_rank) break;
    id[best] = merged[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) id[i] = id[i + 1];
    for (size_t i = best + 1; i + 1 < n; ++i) {
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
  out.insert(out.end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(n));
}

void Merger::merge_by_heap(std::string_view piece, std::vector<int32_t>& out, Scratch& s) const {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(piece.data());
  const auto n = static_cast<uint32_t>(piece.size());
  constexpr uint32_t none = 0xFFFFFFFF;
  // A candidate is the rank and the position of a pair: the smallest has the lowest rank and is its leftmost. One whose
  // rank is no longer that of its position is out of date. Those of the bytes are sorted once, only later ones need
  // the heap.
  s.nodes.resize(n);
  s.sorted.clear();
  s.heap.clear();
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = i + 1 < n ? byte_pairs_[size_t{bytes[i]} << 8 | bytes[i + 1]].rank : no_rank;
    s.nodes[i] = {byte_id_[bytes[i]], rank, i - 1, i + 1 < n ? i + 1 : none};
    if (rank != no_rank) s.sorted.push_back(uint64_t{rank} << 32 | i);
  }
  if (!std::is_sorted(s.sorted.begin(), s.sorted.end())) std::sort(s.sorted.begin(), s.sorted.end());
  const auto later = std::greater<uint64_t>();
  const auto look = [&](uint32_t i) {
    Node& node = s.nodes[i];
    const uint32_t rank = node.next == none ? no_rank : find(node.id, s.nodes[node.next].id).rank;
    if (rank == node.rank) return;  // it is a candidate already
    node.rank = rank;
    if (rank == no_rank) return;
    s.heap.push_back(uint64_t{rank} << 32 | i);
    std::push_heap(s.heap.begin(), s.heap.end(), later);
  };
  size_t taken = 0;  // of s.sorted
  while (taken < s.sorted.size() || !s.heap.empty()) {
    uint64_t best;
    if (s.heap.empty() || (taken < s.sorted.size() && s.sorted[taken] < s.heap.front())) {
      best = s.sorted[taken++];
    } else {
      std::pop_heap(s.heap.begin(), s.heap.end(), later);
      best = s.heap.back();
      s.heap.pop_back();
    }
    ++s.candidates;
    const auto i = static_cast<uint32_t>(best);
    Node& node = s.nodes[i];
    if (node.rank != best >> 32) continue;
    Node& gone = s.nodes[node.next];
    node.id = find(node.id, gone.id).id;
    node.rank = gone.rank = no_rank;
    node.next = gone.next;
    if (node.next != none) s.nodes[node.next].previous = i;
    ++s.merges;
    if (i > 0) look(node.previous);
    look(i);
  }
  for (uint32_t i = 0; i != none; i = s.nodes[i].next) out.push_back(s.nodes[i].id);
}

}  // namespace mythos
