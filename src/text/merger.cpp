#include "text/merger.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <type_traits>

namespace mythos {

void Merger::Scratch::release_if_large() {
  const auto release = [](auto&... vectors) {
    constexpr size_t keep = size_t{1} << 20;
    ((vectors.capacity() > keep ? void(vectors = std::decay_t<decltype(vectors)>()) : void()), ...);
  };
  release(nodes, sorted, heap, here.ids, here.starts, next.ids, next.starts, pair.ids, pair.starts);
}

Merger::Merger(const Vocabulary& vocabulary, const TokenTable& tokens) : byte_pairs_(65536) {
  for (size_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_id_[b] = tokens.find({&c, 1});
  }
  if (vocabulary.merge_by_id) {
    learn_pairs(vocabulary, tokens);
  } else {
    learn_listed_pairs(vocabulary, tokens);
  }
}

void Merger::learn_listed_pairs(const Vocabulary& vocabulary, const TokenTable& tokens) {
  reserve(vocabulary.merges.size());
  std::string bytes;
  uint32_t rank = 0;
  for (const auto& [left, right] : vocabulary.merges) {
    bytes = vocabulary.ordinary[static_cast<size_t>(left)];
    bytes += vocabulary.ordinary[static_cast<size_t>(right)];
    insert(left, right, bytes, {rank++, tokens.find(bytes)});
  }
}

// Finds the one pair of each token (fact 1) by merging its bytes with the pairs of lower ids. Where these do not bring
// it down to two tokens, higher ids may be at work (or nothing ever builds the token): then all ways to cut it in two
// count.
void Merger::learn_pairs(const Vocabulary& vocabulary, const TokenTable& tokens) {
  reserve(vocabulary.ordinary.size());
  Scratch scratch;
  std::vector<int32_t> ids;
  for (size_t id = 0; id < vocabulary.ordinary.size(); ++id) {
    const std::string_view bytes = vocabulary.ordinary[id];
    if (bytes.size() < 2) continue;
    const Result result = {static_cast<uint32_t>(id), static_cast<int32_t>(id)};
    ids.clear();
    merge(bytes, ids, scratch);
    if (ids.size() == 2) {
      insert(ids[0], ids[1], bytes, result);
      continue;
    }
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = tokens.find(bytes.substr(0, cut));
      const int32_t right = left < 0 ? -1 : tokens.find(bytes.substr(cut));
      if (right >= 0) insert(left, right, bytes, result);
    }
  }
}

void Merger::reserve(size_t pairs) {
  slots_.assign(std::bit_ceil(2 * pairs + 64), {});
  filter_.assign((slots_.size() << filter_bits_per_slot_log2) / 64, 0);
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
}

void Merger::insert(int32_t left, int32_t right, std::string_view bytes, Result result) {
  if (bytes.size() == 2) {
    Result& known =
        byte_pairs_[size_t{static_cast<unsigned char>(bytes[0])} << 8 | static_cast<unsigned char>(bytes[1])];
    if (known.rank == no_rank) known = result;
  }
  const auto put = [this](const Slot& slot) {
    const uint64_t bit = hash_of(slot.pair) >> (shift_ - filter_bits_per_slot_log2);
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    slots_[place_of(slot.pair)] = slot;
  };
  if (2 * (n_pairs_ + 1) > slots_.size()) {
    const HugeVector<Slot> old = std::move(slots_);
    reserve(2 * n_pairs_);
    for (const Slot& slot : old) {
      if (slot.pair != no_pair) put(slot);
    }
  }
  const uint64_t pair = pair_of(left, right);
  if (slots_[place_of(pair)].pair == pair) return;  // the first listed counts
  put({pair, result});
  ++n_pairs_;
}

void Merger::merge(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
  if (piece.size() <= scan_limit) return merge_by_scan(piece, out);
  for (size_t window = usual_window; window < piece.size(); window *= 8) {
    if (merge_by_windows(piece, window, out, scratch)) return;
  }
  merge_by_heap(piece, scratch.here, scratch);
  out.insert(out.end(), scratch.here.ids.begin(), scratch.here.ids.end());
}

// Encodes one window after the other. The last tokens of a window would often be others if the window were longer, so
// the next begins a few tokens before its end, at a place where the two encodings fit together. If there is none, this
// is given up: nothing is appended, and the answer is false. Where a window ends with a token that repeats, as the text
// does from there on, the repetitions are counted and not encoded: the token is a neighbour of itself.
bool Merger::merge_by_windows(std::string_view piece, size_t window, std::vector<int32_t>& out, Scratch& s) const {
  constexpr size_t most_dropped = 32;
  const size_t before = out.size();
  merge_by_heap(piece.substr(0, window), s.here, s);
  for (size_t begin = 0; begin + window < piece.size();) {
    const std::vector<int32_t>& ids = s.here.ids;
    bool joined = false;
    for (size_t dropped = 2; dropped <= most_dropped && dropped < ids.size(); dropped *= 2) {
      const size_t kept = ids.size() - dropped;
      const size_t last = begin + s.here.starts[kept - 1];  // where the last token to keep is
      const size_t size = begin + s.here.starts[kept] - last;
      size_t repeats = 0;  // of that token
      if (kept > 1 && ids[kept - 2] == ids[kept - 1]) {
        const std::string_view token = piece.substr(last, size);
        while (piece.substr(last + (repeats + 1) * size, size) == token) ++repeats;
        repeats -= std::min(repeats, dropped);
      }
      const size_t start = last + (repeats + 1) * size;
      merge_by_heap(piece.substr(start, window), s.next, s);
      const size_t next_size = s.next.ids.size() > 1 ? s.next.starts[1] : std::min(window, piece.size() - start);
      joined = are_neighbours(piece.substr(start - size, size + next_size), ids[kept - 1], s.next.ids.front(), s);
      if (!joined) continue;
      out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
      out.insert(out.end(), repeats, ids[kept - 1]);
      std::swap(s.here, s.next);
      begin = start;
      break;
    }
    if (!joined) {
      out.resize(before);
      return false;
    }
  }
  out.insert(out.end(), s.here.ids.begin(), s.here.ids.end());
  return true;
}

bool Merger::are_neighbours(std::string_view both, int32_t left, int32_t right, Scratch& s) const {
  s.pair.ids.clear();
  if (both.size() <= scan_limit) {
    merge_by_scan(both, s.pair.ids);
  } else {
    merge_by_heap(both, s.pair, s);
  }
  return s.pair.ids.size() == 2 && s.pair.ids[0] == left && s.pair.ids[1] == right;
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
    if (best > 0) prefetch(id[best - 1], id[best]);
    if (best + 2 < n) prefetch(id[best], id[best + 2]);
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

void Merger::merge_by_heap(std::string_view piece, Tokens& out, Scratch& s) const {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(piece.data());
  const auto n = static_cast<uint32_t>(piece.size());
  constexpr uint32_t none = 0xFFFFFFFF;
  // A candidate is the rank and the position of a pair: the smallest has the lowest rank and is its leftmost. One whose
  // rank is no longer that of its position is out of date. Those of the bytes are sorted once, only later ones need
  // the heap.
  s.bytes += n;
  s.nodes.resize(n);
  s.sorted.clear();
  s.heap.clear();
  for (uint32_t i = 0; i < n; ++i) {
    const Result r = i + 1 < n ? byte_pairs_[size_t{bytes[i]} << 8 | bytes[i + 1]] : Result();
    s.nodes[i] = {byte_id_[bytes[i]], r.id, r.rank, i - 1, i + 1 < n ? i + 1 : none};
    if (r.rank != no_rank) s.sorted.push_back(uint64_t{r.rank} << 32 | i);
  }
  if (!std::is_sorted(s.sorted.begin(), s.sorted.end())) std::sort(s.sorted.begin(), s.sorted.end());
  const auto later = std::greater<uint64_t>();
  const auto look = [&](uint32_t i) {
    Node& node = s.nodes[i];
    const Result r = node.next == none ? Result() : find(node.id, s.nodes[node.next].id);
    node.merged = r.id;
    if (r.rank == node.rank) return;  // it is a candidate already
    node.rank = r.rank;
    if (r.rank == no_rank) return;
    s.heap.push_back(uint64_t{r.rank} << 32 | i);
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
    node.id = node.merged;
    node.rank = gone.rank = no_rank;
    node.next = gone.next;
    if (node.next != none) {
      s.nodes[node.next].previous = i;
      prefetch(node.id, s.nodes[node.next].id);
    }
    if (i > 0) prefetch(s.nodes[node.previous].id, node.id);
    ++s.merges;
    if (i > 0) look(node.previous);
    look(i);
  }
  out.ids.clear();
  out.starts.clear();
  for (uint32_t i = 0; i != none; i = s.nodes[i].next) {
    out.ids.push_back(s.nodes[i].id);
    out.starts.push_back(i);
  }
}

}  // namespace mythos
