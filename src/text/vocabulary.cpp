#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "text/base64.h"
#include "text/piece_table.h"

namespace mythos {

namespace {

class Hasher {
 public:
  Hasher() { XXH3_64bits_reset(&state_); }
  void number(int64_t value) {
    std::array<unsigned char, 8> bytes{};
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  void text(std::string_view bytes) {
    number(static_cast<int64_t>(bytes.size()));
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
  }
  [[nodiscard]] uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace

int64_t Vocabulary::n_ids() const {
  auto n = static_cast<int64_t>(ordinary.size());
  for (const Special& s : special) n = std::max<int64_t>(n, s.id + 1);
  return n;
}

void Vocabulary::check(std::string_view where) const {
  const auto bad = [where](const std::string& what) {
    return failure(fmt::format("{}: {}", where, what), "the tokenizer file is damaged or of another kind");
  };
  if (n_ids() > max_token_ids) throw bad(fmt::format("token ids reach {}, the most is {}", n_ids(), max_token_ids));
  std::unordered_map<std::string_view, int32_t> id_of;
  id_of.reserve(ordinary.size());
  for (size_t i = 0; i < ordinary.size(); ++i) {
    if (ordinary[i].empty()) continue;
    const auto [it, fresh] = id_of.try_emplace(ordinary[i], static_cast<int32_t>(i));
    if (!fresh) throw bad(fmt::format("ids {} and {} are the same token", it->second, i));
  }
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    if (!id_of.contains(std::string_view(&c, 1))) throw bad(fmt::format("there is no token for the byte 0x{:02X}", b));
  }
  std::unordered_set<int32_t> special_ids;
  std::unordered_set<std::string_view> special_texts;
  for (const Special& s : special) {
    if (s.id < 0 || s.text.empty()) throw bad(fmt::format("special token {} has no text or a negative id", s.id));
    const auto i = static_cast<size_t>(s.id);
    if (!special_ids.insert(s.id).second || (i < ordinary.size() && !ordinary[i].empty())) {
      throw bad(fmt::format("id {} is given twice", s.id));
    }
    if (!special_texts.insert(s.text).second) throw bad(fmt::format("special token '{}' is listed twice", s.text));
  }
  if (end_of_text && !special_ids.contains(*end_of_text)) {
    throw bad(fmt::format("the end-of-text id {} is not among the special tokens", *end_of_text));
  }
  if (n_ordinary < static_cast<int64_t>(ordinary.size()) || n_ordinary > n_ids()) {
    throw bad(fmt::format("{} ordinary tokens do not fit ids up to {}", n_ordinary, n_ids() - 1));
  }
  if (merge_by_id && !merges.empty()) throw bad("merges are listed though ids give their order");
  std::unordered_set<uint64_t> pairs;
  pairs.reserve(merges.size());
  for (size_t m = 0; m < merges.size(); ++m) {
    const auto [left, right] = merges[m];
    const auto known = [this](int32_t id) {
      return id >= 0 && static_cast<size_t>(id) < ordinary.size() && !ordinary[static_cast<size_t>(id)].empty();
    };
    if (!known(left) || !known(right) ||
        !id_of.contains(ordinary[static_cast<size_t>(left)] + ordinary[static_cast<size_t>(right)])) {
      throw bad(fmt::format("merge {} is of or to something that is not a token", m));
    }
    if (!pairs.insert(uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right)).second) {
      throw bad(fmt::format("merge {} is listed before", m));
    }
  }
}

std::string Vocabulary::fingerprint() const {
  Hasher h;
  h.text("mythos-tokenizer 1");
  h.text(pattern);
  h.number(whole_pieces);
  h.number(n_ordinary);
  h.number(end_of_text ? *end_of_text : -1);
  for (size_t i = 0; i < ordinary.size(); ++i) {
    if (ordinary[i].empty()) continue;
    h.number(static_cast<int64_t>(i));
    h.text(ordinary[i]);
  }
  h.number(merge_by_id ? -1 : static_cast<int64_t>(merges.size()));
  for (const auto& [left, right] : merges) {
    h.number(left);
    h.number(right);
  }
  return fmt::format("{:016x}", h.digest());
}

Vocabulary load_vocabulary(const std::filesystem::path& path) {
  return parse_vocabulary(read_file(path, max_vocabulary_bytes), path.string());
}

Vocabulary parse_vocabulary(std::string_view text, std::string_view where) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw failure(fmt::format("{}: the tokenizer file is empty", where));
  return text.starts_with("mythos-tokenizer ") ? parse_own(text, where)
         : text[first] == '{'                  ? parse_hugging_face(text, where)
                                               : parse_tiktoken(text, where);
}

}  // namespace mythos
