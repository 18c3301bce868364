#include "text/training.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/units.h"
#include "text/splitter.h"

namespace mythos {

namespace {

constexpr int64_t bytes_between_reports = 4 << 20;
constexpr int64_t merges_between_reports = 10;

struct PairHash {
  size_t operator()(uint64_t pair) const { return mix64(pair); }
};
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using PieceCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

// All distinct pieces as one array of tokens in linked lists, and for every pair of neighbours its count and places.
class Corpus {
 public:
  explicit Corpus(PieceCounts counts) {
    std::vector<std::pair<std::string, int64_t>> pieces(counts.begin(), counts.end());
    counts = {};
    std::sort(pieces.begin(), pieces.end());  // the same order whatever the hash
    size_t total = 0;
    for (const auto& [bytes, n] : pieces) total += bytes.size();
    if (total >= none) {
      throw failure(fmt::format("the distinct words of the text have {} bytes, too many to train on", total),
                    "train on a part of the text");
    }
    id_.resize(total);
    previous_.resize(total);
    next_.resize(total);
    piece_.resize(total);
    uint32_t at = 0;
    for (const auto& [bytes, n] : pieces) {
      const auto first = at;
      const auto end = static_cast<uint32_t>(at + bytes.size());
      for (; at < end; ++at) {
        id_[at] = static_cast<unsigned char>(bytes[at - first]);
        previous_[at] = at > first ? at - 1 : none;
        next_[at] = at + 1 < end ? at + 1 : none;
        piece_[at] = static_cast<uint32_t>(count_.size());
      }
      count_.push_back(n);
    }
    for (uint32_t i = 0; i < total; ++i) {
      if (next_[i] != none) add(i);
    }
    for (const auto& [pair, found] : pairs_) push(pair, found.count);
    raised_.clear();
  }

  struct Best {
    int32_t left = -1, right = -1;
    int64_t count = 0;
  };
  // The most frequent pair, or count 0 if there is none of at least `least`.
  Best best(int64_t least) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      if (top.count < least) return {};
      queue_.pop();
      const auto it = pairs_.find(top.pair);
      if (it == pairs_.end() || it->second.count > top.count) continue;  // a newer candidate is in the queue
      if (it->second.count == top.count) {
        return {static_cast<int32_t>(top.pair >> 32), static_cast<int32_t>(top.pair & 0xFFFFFFFF), top.count};
      }
      if (it->second.count > 0) push(top.pair, it->second.count);
    }
    return {};
  }

  // Makes every occurrence of the pair the token `id`, from left to right.
  void merge(int32_t left, int32_t right, int32_t id) {
    const auto found = pairs_.find(key(left, right));
    std::vector<uint32_t> places = std::move(found->second.places);
    pairs_.erase(found);
    std::sort(places.begin(), places.end());
    for (const uint32_t i : places) {
      const uint32_t j = next_[i];
      if (id_[i] != left || j == none || id_[j] != right) continue;
      if (previous_[i] != none) remove(previous_[i]);
      if (next_[j] != none) remove(j);
      id_[i] = id;
      id_[j] = -1;
      next_[i] = next_[j];
      if (next_[i] != none) previous_[next_[i]] = i;
      if (previous_[i] != none) add(previous_[i]);
      if (next_[i] != none) add(i);
    }
    std::sort(raised_.begin(), raised_.end());
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (const uint64_t pair : raised_) {
      if (const auto it = pairs_.find(pair); it != pairs_.end() && it->second.count > 0) push(pair, it->second.count);
    }
    raised_.clear();
  }

 private:
  static constexpr uint32_t none = std::numeric_limits<uint32_t>::max();
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> places;  // where it began once; checked when used
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  [[nodiscard]] uint64_t key_at(uint32_t i) const { return key(id_[i], id_[next_[i]]); }
  void push(uint64_t pair, int64_t count) { queue_.push({count, pair}); }
  void add(uint32_t i) {
    const uint64_t pair = key_at(i);
    Pair& p = pairs_[pair];
    p.count += count_[piece_[i]];
    p.places.push_back(i);
    raised_.push_back(pair);
  }
  void remove(uint32_t i) {
    if (const auto it = pairs_.find(key_at(i)); it != pairs_.end()) it->second.count -= count_[piece_[i]];
  }

  std::vector<int32_t> id_;
  std::vector<uint32_t> previous_, next_, piece_;
  std::vector<int64_t> count_;  // of each piece
  std::unordered_map<uint64_t, Pair, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<uint64_t> raised_;
};

PieceCounts count_pieces(const DocumentSource& documents, TrainingProgress& state, const TrainingProgressFn& progress) {
  const O200kSplitter splitter;
  PieceCounts counts;
  std::string text;
  int64_t reported = 0;
  while (documents(text)) {
    ++state.documents;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = splitter.next(text, begin);
      const std::string_view piece(text.data() + begin, end - begin);
      if (const auto it = counts.find(piece); it != counts.end()) {
        ++it->second;
      } else {
        counts.emplace(piece, 1);
      }
      begin = end;
    }
    state.bytes += static_cast<int64_t>(text.size());
    if (progress && state.bytes - reported >= bytes_between_reports) {
      reported = state.bytes;
      state.pieces = static_cast<int64_t>(counts.size());
      progress(state);
    }
    text.clear();
  }
  state.pieces = static_cast<int64_t>(counts.size());
  if (progress) progress(state);
  return counts;
}

}  // namespace

Tokenizer train_tokenizer(const DocumentSource& documents, const TokenizerTraining& options,
                          const TrainingProgressFn& progress) {
  constexpr int64_t smallest = 257;
  if (options.vocab_size < smallest || options.vocab_size > max_token_ids) {
    throw usage_error(fmt::format("a vocabulary of {} tokens cannot be trained", options.vocab_size),
                      fmt::format("choose {} (256 bytes and the end of text) to {}", smallest, max_token_ids));
  }
  TrainingProgress state;
  state.tokens = 256;
  state.vocab_size = options.vocab_size;
  PieceCounts counts = count_pieces(documents, state, progress);
  if (counts.empty()) throw failure("there is no text to train a tokenizer on", "check the source: it gave no bytes");
  Corpus corpus(std::move(counts));

  Vocabulary v;
  v.pattern = o200k_pattern;
  std::unordered_map<std::string, int32_t> known;
  const auto add_token = [&](std::string bytes) {
    known.emplace(bytes, static_cast<int32_t>(v.ordinary.size()));
    v.ordinary.push_back(std::move(bytes));
  };
  for (int b = 0; b < 256; ++b) add_token(std::string(1, static_cast<char>(b)));

  const int64_t least = std::max<int64_t>(options.min_count, 1);
  state.reading = false;
  int64_t reported = 0;
  while (static_cast<int64_t>(v.ordinary.size()) + 1 < options.vocab_size) {
    const Corpus::Best best = corpus.best(least);
    if (best.count == 0) {
      throw failure(fmt::format("the text gives only {} tokens, not {}", v.ordinary.size() + 1, options.vocab_size),
                    fmt::format("ask for a vocabulary of {} at most, or give more text", v.ordinary.size() + 1));
    }
    std::string bytes = v.ordinary[static_cast<size_t>(best.left)] + v.ordinary[static_cast<size_t>(best.right)];
    if (static_cast<int64_t>(bytes.size()) > options.max_token_bytes) continue;  // it is off the queue for good
    // Different pairs can give the same bytes: then it is the token that is there already.
    if (const auto it = known.find(bytes); it != known.end()) {
      corpus.merge(best.left, best.right, it->second);
      continue;
    }
    corpus.merge(best.left, best.right, static_cast<int32_t>(v.ordinary.size()));
    add_token(std::move(bytes));
    state.tokens = static_cast<int64_t>(v.ordinary.size());
    if (progress && state.tokens - reported >= merges_between_reports) {
      reported = state.tokens;
      progress(state);
    }
  }
  v.end_of_text = static_cast<int32_t>(v.ordinary.size());
  v.special = {{*v.end_of_text, std::string(end_of_text_name)}};
  v.n_ordinary = *v.end_of_text + 1;
  state.tokens = v.n_ordinary;
  if (progress) progress(state);
  return Tokenizer(std::move(v));
}

Tokenizer train_tokenizer(std::span<const std::string> documents, const TokenizerTraining& options,
                          const TrainingProgressFn& progress) {
  size_t next = 0;
  return train_tokenizer(
      [&](std::string& text) {
        if (next == documents.size()) return false;
        text = documents[next++];
        return true;
      },
      options, progress);
}

}  // namespace mythos
