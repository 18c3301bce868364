#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <variant>

#include "base/error.h"
#include "text/merger.h"
#include "text/piece_table.h"
#include "text/splitter.h"

namespace mythos {

namespace {

// Ids of short pieces that are no token by themselves, as merging found them: one place per hash, newest wins.
class PieceCache {
 public:
  struct alignas(64) Entry {
    static constexpr size_t max_ids = 11;
    ShortKey key;
    uint32_t n = 0;
    std::array<int32_t, max_ids> ids{};
  };
  [[nodiscard]] Entry& at(uint64_t hash) { return entries_[hash >> (64 - bits)]; }

 private:
  static constexpr int bits = 14;
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << bits);  // 1 MiB
};

// What one call of encode works with.
struct Workspace {
  PieceCache cache;
  Merger::Scratch merging;
  std::optional<RegexSplitter::Scratch> regex;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(Vocabulary v, std::string_view where) : vocabulary(std::move(v)) {
    vocabulary.check(where);
    all_tokens = TokenTable(vocabulary.ordinary);
    merger = Merger(vocabulary, all_tokens);
    if (!vocabulary.whole_pieces) leave_out_unreachable_tokens();
    if (vocabulary.pattern != o200k_pattern) regex = std::make_unique<RegexSplitter>(vocabulary.pattern, where);
    fingerprint = vocabulary.fingerprint();
    n_ids = vocabulary.n_ids();
  }

  // A piece that is a token may skip merging only if merging would give that token.
  void leave_out_unreachable_tokens() {
    std::vector<std::string_view> reachable(vocabulary.ordinary.begin(), vocabulary.ordinary.end());
    Merger::Scratch scratch;
    std::vector<int32_t> ids;
    bool all = true;
    for (auto& token : reachable) {
      if (token.empty()) continue;
      ids.clear();
      merger.merge(token, ids, scratch);
      if (ids.size() == 1) continue;
      token = {};
      all = false;
    }
    if (all) {
      vocabulary.whole_pieces = true;  // it makes no difference, and the fingerprint should say so
    } else {
      all_tokens = TokenTable(reachable);
    }
  }

  // A workspace for the time of one call, from those not in use.
  class Lease {
   public:
    explicit Lease(const Impl& impl) : impl_(impl) {
      {
        const std::lock_guard lock(impl.mutex);
        if (!impl.idle.empty()) {
          workspace_ = std::move(impl.idle.back());
          impl.idle.pop_back();
        }
      }
      if (!workspace_) {
        workspace_ = std::make_unique<Workspace>();
        if (impl.regex) workspace_->regex.emplace(*impl.regex);
      }
    }
    ~Lease() {
      workspace_->merging.release_if_large();
      const std::lock_guard lock(impl_.mutex);
      if (impl_.idle.size() < max_idle) impl_.idle.push_back(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    static constexpr size_t max_idle = 256;
    const Impl& impl_;
    std::unique_ptr<Workspace> workspace_;
  };

  // Calls visit(begin, end) for each piece.
  template <class Visit>
  void for_each_piece(std::string_view text, Workspace& w, const Visit& visit) const {
    if (!regex) {
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = splitter.next(text, begin);
        visit(begin, end);
        begin = end;
      }
      return;
    }
    RegexSplitter::Walk walk(*regex, *w.regex, text);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = walk.next(begin);
      visit(begin, end);
      begin = end;
    }
  }

  void encode_piece(std::string_view text, size_t begin, size_t end, Workspace& w, std::vector<int32_t>& out) const {
    const size_t n = end - begin;
    const char* const p = text.data() + begin;
    if (n == 1) {
      out.push_back(merger.byte_id(static_cast<unsigned char>(*p)));
      return;
    }
    if (n <= ShortKey::max_size) {
      const ShortKey key = ShortKey::of(p, n, text.size() - begin);
      const uint64_t hash = key.hash();
      const int32_t id = all_tokens.find_short(key, hash);
      if (id >= 0) {
        out.push_back(id);
        return;
      }
      PieceCache::Entry& entry = w.cache.at(hash);
      if (entry.key == key) {
        out.insert(out.end(), entry.ids.begin(), entry.ids.begin() + entry.n);
        return;
      }
      const size_t before = out.size();
      merger.merge({p, n}, out, w.merging);
      const size_t count = out.size() - before;
      if (count <= PieceCache::Entry::max_ids) {
        entry.key = key;
        entry.n = static_cast<uint32_t>(count);
        std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(before), count, entry.ids.begin());
      }
      return;
    }
    if (const int32_t id = all_tokens.find_long({p, n}); id >= 0) {
      out.push_back(id);
      return;
    }
    for (size_t done = 0; done < n; done += Merger::piece_limit) {
      merger.merge({p + done, std::min(n - done, Merger::piece_limit)}, out, w.merging);
    }
  }

  Vocabulary vocabulary;
  TokenTable all_tokens;
  Merger merger;
  O200kSplitter splitter;
  std::unique_ptr<RegexSplitter> regex;  // if the rule is not o200k's
  std::string fingerprint;
  int64_t n_ids = 0;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return Tokenizer(load_vocabulary(path), path.string()); }

Tokenizer::Tokenizer(Vocabulary vocabulary, std::string_view where)
    : impl_(std::make_shared<const Impl>(std::move(vocabulary), where)) {}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  const Impl::Lease lease(*impl_);
  Workspace& w = *lease;
  impl_->for_each_piece(text, w, [&](size_t begin, size_t end) { impl_->encode_piece(text, begin, end, w, out); });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  encode(text, ids);
  return ids;
}

std::vector<size_t> Tokenizer::split(std::string_view text) const {
  const Impl::Lease lease(*impl_);
  std::vector<size_t> ends;
  impl_->for_each_piece(text, *lease, [&](size_t, size_t end) { ends.push_back(end); });
  return ends;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size() * 4);
  for (const int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const Vocabulary& v = impl_->vocabulary;
  if (id >= 0 && static_cast<size_t>(id) < v.ordinary.size() && !v.ordinary[static_cast<size_t>(id)].empty()) {
    return v.ordinary[static_cast<size_t>(id)];
  }
  for (const auto& s : v.special) {
    if (s.id == id) return s.text;
  }
  return replacement_character;
}

int64_t Tokenizer::n_ordinary() const { return impl_->vocabulary.n_ordinary; }
int64_t Tokenizer::n_ids() const { return impl_->n_ids; }
std::optional<int32_t> Tokenizer::end_of_text() const { return impl_->vocabulary.end_of_text; }
const std::string& Tokenizer::fingerprint() const { return impl_->fingerprint; }
const Vocabulary& Tokenizer::vocabulary() const { return impl_->vocabulary; }

void Tokenizer::save(const std::filesystem::path& path) const { save_vocabulary(impl_->vocabulary, path); }

}  // namespace mythos
