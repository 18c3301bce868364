// Hugging Face's tokenizer.json, as far as byte-level BPE goes.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"
#include "text/piece_table.h"
#include "text/splitter.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace mythos {

namespace {

using PlainJson = nlohmann::json;

constexpr int max_depth = 32;
constexpr size_t max_pattern_bytes = 64 * 1024;
/// The rule of a ByteLevel pre-tokenizer that splits by itself (GPT-2's).
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The byte that each character of the byte-level alphabet stands for: printable Latin-1 is itself, the other bytes
// follow from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    byte_of_.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      byte_of_[itself ? b : next++] = static_cast<int16_t>(b);
    }
  }
  // False if a character is not of the alphabet.
  [[nodiscard]] bool decode(std::string_view text, std::string& bytes) const {
    bytes.clear();
    const auto* p = reinterpret_cast<const unsigned char*>(text.data());
    const unsigned char* const end = p + text.size();
    while (p < end) {
      const Utf8Step s = utf8_step(p, end);
      if (s.code >= byte_of_.size() || byte_of_[s.code] < 0) return false;
      bytes.push_back(static_cast<char>(byte_of_[s.code]));
      p += s.size;
    }
    return true;
  }

 private:
  std::array<int16_t, 324> byte_of_{};
};

// Reads the file's tree, but takes the large parts (model.vocab and model.merges) out while it is parsed.
class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  Vocabulary read(std::string_view text) {
    PlainJson tree;
    try {
      tree = PlainJson::parse(text, [this](int depth, PlainJson::parse_event_t event, PlainJson& value) {
        return take(depth, event, value);
      });
    } catch (const PlainJson::exception& e) {
      throw error(fmt::format("not valid JSON: {}", e.what()));
    }
    read_model_options(tree);
    read_rule(tree);
    read_added(tree);
    v_.n_ordinary = static_cast<int64_t>(v_.ordinary.size());
    read_merges();
    return std::move(v_);
  }

 private:
  [[nodiscard]] Error error(const std::string& what) const { return failure(fmt::format("{}: {}", where_, what)); }
  [[nodiscard]] Error unsupported(const std::string& what) const {
    return failure(fmt::format("{}: {}, which this program does not support", where_, what),
                   "use a byte-level BPE tokenizer without normalizer, such as the one of openai/gpt-oss-20b");
  }

  bool take(int depth, PlainJson::parse_event_t event, PlainJson& value) {
    using Event = PlainJson::parse_event_t;
    if (depth > max_depth) throw error("nested too deeply");
    const auto d = static_cast<size_t>(depth);
    if (event == Event::key) {
      path_.resize(d);
      path_.push_back(value.get<std::string>());
      return !(d == 3 && in_model("vocab"));
    }
    if ((event == Event::object_start || event == Event::array_start) && d == 3 && path_.size() == 4 &&
        in_model("vocab")) {
      throw error(fmt::format("the id of token '{}' is not a whole number", path_[3]));
    }
    if (event == Event::value && d == 3 && path_.size() == 4 && in_model("vocab")) {
      add_token(path_[3], value);
      return false;
    }
    if (path_.size() == 3 && in_model("merges")) {
      if (event == Event::value && d == 3) {
        if (!value.is_string()) throw error(fmt::format("merge {} is not a pair of tokens", merges_.size()));
        const auto pair = value.get<std::string>();
        const size_t space = pair.find(' ');
        if (space == std::string::npos) throw error(fmt::format("merge {} has no space", merges_.size()));
        merges_.emplace_back(pair.substr(0, space), pair.substr(space + 1));
        return false;
      }
      if (event == Event::array_end && d == 3) {
        if (value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
          throw error(fmt::format("merge {} is not a pair of tokens", merges_.size()));
        }
        merges_.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool in_model(std::string_view part) const {
    return path_.size() >= 3 && path_[1] == "model" && path_[2] == part;
  }

  int32_t id_from(const PlainJson& value, const std::string& token) const {
    if (!value.is_number_integer()) throw error(fmt::format("the id of token '{}' is not a whole number", token));
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() < max_token_ids : false;
    if (!fits) {
      throw error(
          fmt::format("the id {} of token '{}' is not between 0 and {}", value.dump(), token, max_token_ids - 1));
    }
    return value.get<int32_t>();
  }

  void add_token(const std::string& token, const PlainJson& value) {
    const int32_t id = id_from(value, token);
    const auto i = static_cast<size_t>(id);
    if (i >= names_.size()) names_.resize(i + 1);
    if (token.empty()) throw error(fmt::format("token {} is empty", id));
    if (!names_[i].empty()) throw error(fmt::format("tokens '{}' and '{}' have the same id {}", names_[i], token, id));
    names_[i] = token;
  }

  void read_model_options(const PlainJson& tree) {
    const auto model = tree.is_object() ? tree.find("model") : tree.end();
    if (model == tree.end() || !model->is_object()) throw error("there is no \"model\": not a tokenizer.json");
    const auto is_null_or = [&](const char* key, const PlainJson& neutral) {
      const auto it = model->find(key);
      return it == model->end() || it->is_null() || *it == neutral;
    };
    if (!is_null_or("type", "BPE")) throw unsupported(fmt::format("the model is {}", (*model)["type"].dump()));
    if (names_.empty()) throw error("the model has no \"vocab\"");
    if (!is_null_or("dropout", 0.0)) throw unsupported("merges drop out");
    if (!is_null_or("continuing_subword_prefix", "")) throw unsupported("tokens have a continuing prefix");
    if (!is_null_or("end_of_word_suffix", "")) throw unsupported("tokens have an end-of-word suffix");
    if (!is_null_or("byte_fallback", false)) throw unsupported("it falls back to bytes instead of being byte-level");
    v_.whole_pieces = !is_null_or("ignore_merges", false);
    const auto normalizer = tree.find("normalizer");
    if (normalizer != tree.end() && !normalizer->is_null() &&
        !(normalizer->is_object() && normalizer->value("type", "") == "Sequence" &&
          normalizer->contains("normalizers") && (*normalizer)["normalizers"].empty())) {
      throw unsupported("it normalizes the text before encoding");
    }
  }

  // ByteLevel alone, or Split by a regular expression and then ByteLevel.
  void read_rule(const PlainJson& tree) {
    const auto top = tree.find("pre_tokenizer");
    if (top == tree.end() || !top->is_object()) throw unsupported("it has no byte-level pre-tokenizer");
    std::vector<const PlainJson*> steps;
    if (text_of(*top, "type") == "Sequence") {
      const auto list = top->find("pretokenizers");
      if (list == top->end() || !list->is_array()) throw error("the pre-tokenizer's sequence is not a list");
      for (const PlainJson& step : *list) steps.push_back(&step);
    } else {
      steps.push_back(&*top);
    }
    if (steps.empty() || steps.size() > 2) throw unsupported("its pre-tokenizer is more than one split");
    const PlainJson& byte_level = *steps.back();
    if (text_of(byte_level, "type") != "ByteLevel") throw unsupported("its pre-tokenizer does not end in ByteLevel");
    if (flag_of(byte_level, "add_prefix_space", true)) throw unsupported("it adds a space before the text");
    const bool by_itself = flag_of(byte_level, "use_regex", true);
    if (steps.size() == 1) {
      if (!by_itself) throw unsupported("it does not split the text");
      v_.pattern = gpt2_pattern;
      return;
    }
    const PlainJson& split = *steps.front();
    if (by_itself || text_of(split, "type") != "Split" || !split.contains("pattern") || !split["pattern"].is_object() ||
        !split["pattern"].contains("Regex") || !split["pattern"]["Regex"].is_string()) {
      throw unsupported("its pre-tokenizer is not one split by a regular expression");
    }
    v_.pattern = split["pattern"]["Regex"].get<std::string>();
    if (v_.pattern.size() > max_pattern_bytes) throw error("the splitting rule is too long");
    // Both ways of saying that each match is a piece; they differ only in what no match covers.
    const std::string behavior = text_of(split, "behavior");
    const bool invert = flag_of(split, "invert", false);
    const bool isolated = behavior == "Isolated" && !invert;
    const bool removed = behavior == "Removed" && invert && v_.pattern == o200k_pattern;
    if (!isolated && !removed) throw unsupported(fmt::format("its split has the behavior '{}'", behavior));
  }
  static std::string text_of(const PlainJson& object, const char* key) {
    const auto it = object.is_object() ? object.find(key) : object.end();
    return it != object.end() && it->is_string() ? it->get<std::string>() : "";
  }
  static bool flag_of(const PlainJson& object, const char* key, bool otherwise) {
    const auto it = object.find(key);
    return it != object.end() && it->is_boolean() ? it->get<bool>() : otherwise;
  }

  // Added tokens become special ones, also where the vocabulary lists them.
  void read_added(const PlainJson& tree) {
    if (const auto added = tree.find("added_tokens"); added != tree.end() && added->is_array()) {
      for (const PlainJson& token : *added) {
        const std::string text = text_of(token, "content");
        if (text.empty() || !token.contains("id")) throw error("an added token lacks its content or id");
        const int32_t id = id_from(token["id"], text);
        if (static_cast<size_t>(id) < names_.size() && names_[static_cast<size_t>(id)] == text) {
          names_[static_cast<size_t>(id)].clear();
        }
        v_.special.push_back({id, text});
      }
    }
    std::sort(v_.special.begin(), v_.special.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (const std::string_view name :
         {end_of_text_name, std::string_view("<|end_of_text|>"), std::string_view("<eos>"), std::string_view("</s>")}) {
      for (const auto& s : v_.special) {
        if (!v_.end_of_text && s.text == name) v_.end_of_text = s.id;
      }
    }
    while (!names_.empty() && names_.back().empty()) names_.pop_back();
    v_.ordinary.resize(names_.size());
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!alphabet_.decode(names_[i], v_.ordinary[i])) {
        throw unsupported(fmt::format("token {} ('{}') is not in the byte-level alphabet", i, names_[i]));
      }
    }
  }

  void read_merges() {
    const TokenTable tokens(v_.ordinary);
    std::string left, right;
    v_.merges.reserve(merges_.size());
    for (const auto& [a, b] : merges_) {
      const bool known = alphabet_.decode(a, left) && alphabet_.decode(b, right);
      const int32_t l = known ? tokens.find(left) : -1;
      const int32_t r = known ? tokens.find(right) : -1;
      if (l < 0 || r < 0 || tokens.find(left + right) < 0) {
        throw error(
            fmt::format("merge {} ('{}' '{}') is of or to something that is not a token", v_.merges.size(), a, b));
      }
      v_.merges.emplace_back(l, r);
    }
    v_.merge_by_id = all_splits_by_id(tokens);
    if (v_.merge_by_id) v_.merges.clear();
  }

  // Whether the merges are all pairs of tokens that together give a token, in the order of what they give: how a
  // vocabulary that merges by id is written in this format.
  [[nodiscard]] bool all_splits_by_id(const TokenTable& tokens) const {
    size_t m = 0;
    std::vector<std::pair<int32_t, int32_t>> expected, listed;
    for (const std::string_view bytes : v_.ordinary) {
      expected.clear();
      for (size_t cut = 1; cut < bytes.size(); ++cut) {
        const int32_t l = tokens.find(bytes.substr(0, cut));
        const int32_t r = l < 0 ? -1 : tokens.find(bytes.substr(cut));
        if (r >= 0) expected.emplace_back(l, r);
      }
      if (v_.merges.size() - m < expected.size()) return false;
      listed.assign(v_.merges.begin() + static_cast<std::ptrdiff_t>(m),
                    v_.merges.begin() + static_cast<std::ptrdiff_t>(m + expected.size()));
      std::sort(expected.begin(), expected.end());
      std::sort(listed.begin(), listed.end());
      if (listed != expected) return false;
      m += expected.size();
    }
    return m == v_.merges.size();
  }

  std::string_view where_;
  ByteAlphabet alphabet_;
  Vocabulary v_;
  std::vector<std::string> path_;   // keys from the root down; [0] unused
  std::vector<std::string> names_;  // vocab by id, as written
  std::vector<std::pair<std::string, std::string>> merges_;
};

}  // namespace

Vocabulary parse_hugging_face(std::string_view text, std::string_view where) { return Reader(where).read(text); }

}  // namespace mythos
