#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "text/merger.h"
#include "text/piece_cache.h"
#include "text/pool.h"
#include "text/splitter.h"

namespace mythos {

namespace {

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
    explicit Lease(const Impl& impl) : impl_(impl), workspace_(impl.idle.take()) {
      if (workspace_) return;
      workspace_ = std::make_unique<Workspace>();
      if (impl.regex) workspace_->regex.emplace(*impl.regex);
    }
    ~Lease() {
      workspace_->merging.release_if_large();
      impl_.idle.give(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
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

  static constexpr size_t batch = 32;
  // A piece on its way: where it is and, if it is short, its key.
  struct Piece {
    const char* text;
    size_t size;
    ShortKey key;
    uint64_t hash;
  };

  // The tables are larger than the caches nearest to the processor, so pieces go through in batches and each step asks
  // for the memory that the next will read: cut the text, look into the near cache, look into the large tables.
  void encode(std::string_view text, Workspace& w, std::vector<int32_t>& out) const {
    std::array<Piece, batch> pieces;
    size_t n = 0;
    for_each_piece(text, w, [&](size_t begin, size_t end) {
      Piece& piece = pieces[n++];
      piece.text = text.data() + begin;
      piece.size = end - begin;
      if (piece.size <= ShortKey::max_size) {
        piece.key = ShortKey::of(piece.text, piece.size, text.size() - begin);
        piece.hash = piece.key.hash();
        __builtin_prefetch(&w.cache.near(piece.hash));
      }
      if (n == batch) {
        encode_batch(pieces, w, out);
        n = 0;
      }
    });
    encode_batch({pieces.data(), n}, w, out);
  }

  void encode_batch(std::span<const Piece> pieces, Workspace& w, std::vector<int32_t>& out) const {
    for (const Piece& piece : pieces) {
      if (piece.size > ShortKey::max_size || w.cache.near(piece.hash).key == piece.key) continue;
      all_tokens.prefetch(piece.hash);
      __builtin_prefetch(&w.cache.far(piece.hash));
    }
    std::array<int32_t, batch*(PieceCache::Near::max_ids + 1)> ids;  // not yet in `out`
    int32_t* end = ids.data();
    const auto hand_over = [&] {
      out.insert(out.end(), ids.data(), end);
      end = ids.data();
    };
    for (const Piece& piece : pieces) {
      if (piece.size > ShortKey::max_size) {
        hand_over();
        encode_long({piece.text, piece.size}, w, out);
        continue;
      }
      const PieceCache::Near& near = w.cache.near(piece.hash);
      if (near.key == piece.key) {
        std::memcpy(end, near.ids.data(), sizeof(near.ids));
        end += near.n;
      } else {
        hand_over();
        encode_short(piece, w, out);
      }
    }
    hand_over();
  }

  void encode_short(const Piece& piece, Workspace& w, std::vector<int32_t>& out) const {
    const int32_t id = all_tokens.find_short(piece.key, piece.hash);
    if (id >= 0) {
      out.push_back(id);
      w.cache.remember(piece.key, piece.hash, {&id, 1});
      return;
    }
    const PieceCache::Far& far = w.cache.far(piece.hash);
    if (far.key == piece.key) {
      out.insert(out.end(), far.ids.begin(), far.ids.begin() + far.n);
      w.cache.remember(piece.key, piece.hash, {far.ids.data(), far.n});
      return;
    }
    const size_t before = out.size();
    merger.merge({piece.text, piece.size}, out, w.merging);
    w.cache.remember_merged(piece.key, piece.hash, std::span(out).subspan(before));
  }

  void encode_long(std::string_view piece, Workspace& w, std::vector<int32_t>& out) const {
    if (const int32_t id = all_tokens.find_long(piece); id >= 0) {
      out.push_back(id);
      return;
    }
    for (size_t done = 0; done < piece.size(); done += Merger::piece_limit) {
      merger.merge(piece.substr(done, Merger::piece_limit), out, w.merging);
    }
  }

  Vocabulary vocabulary;
  TokenTable all_tokens;
  Merger merger;
  O200kSplitter splitter;
  std::unique_ptr<RegexSplitter> regex;  // if the rule is not o200k's
  std::string fingerprint;
  int64_t n_ids = 0;
  mutable Pool<Workspace> idle;
};

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return Tokenizer(load_vocabulary(path), path.string()); }

Tokenizer::Tokenizer(Vocabulary vocabulary, std::string_view where)
    : impl_(std::make_shared<const Impl>(std::move(vocabulary), where)) {}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  const Impl::Lease lease(*impl_);
  Workspace& w = *lease;
  impl_->encode(text, w, out);
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

size_t Tokenizer::count_pieces(std::string_view text) const {
  const Impl::Lease lease(*impl_);
  size_t n = 0;
  impl_->for_each_piece(text, *lease, [&](size_t, size_t) { ++n; });
  return n;
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
