// The line-based vocabulary files: .tiktoken and our own.
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/base64.h"
#include "text/splitter.h"
#include "text/vocabulary.h"

namespace mythos {

namespace {

constexpr int64_t o200k_tokens = 199998;
constexpr int32_t o200k_end_of_text = 199999;
constexpr int32_t o200k_end_of_prompt = 200018;
constexpr std::string_view own_first_line = "mythos-tokenizer 1";

// Lines of a text, without their ends ("\n" or "\r\n").
class Lines {
 public:
  Lines(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  bool next(std::string_view& line) {
    if (at_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    line = text_.substr(at_, end - at_);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at_ = end + 1;
    ++number_;
    return true;
  }
  [[nodiscard]] Error error(const std::string& what) const {
    return failure(fmt::format("{}, line {}: {}", where_, number_, what),
                   "the tokenizer file is damaged or of another kind");
  }

 private:
  std::string_view text_;
  std::string_view where_;
  size_t at_ = 0;
  int64_t number_ = 0;
};

int32_t parse_id(std::string_view text, const Lines& lines) {
  int64_t id = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, id);
  if (error != std::errc() || end != last) throw lines.error("expected a token id (a whole number)");
  if (id < 0 || id >= max_token_ids) {
    throw lines.error(fmt::format("the id {} is not between 0 and {}", id, max_token_ids - 1));
  }
  return static_cast<int32_t>(id);
}

// "base64 id"
std::pair<std::string, int32_t> parse_token(std::string_view line, const Lines& lines) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) throw lines.error("expected a token in base64, a space and its id");
  std::pair<std::string, int32_t> token;
  if (!base64_decode(line.substr(0, space), token.first)) throw lines.error("the token is not valid base64");
  if (token.first.empty()) throw lines.error("the token is empty");
  token.second = parse_id(line.substr(space + 1), lines);
  return token;
}

void add_ordinary(Vocabulary& v, std::pair<std::string, int32_t> token, const Lines& lines) {
  const auto i = static_cast<size_t>(token.second);
  if (i >= v.ordinary.size()) v.ordinary.resize(i + 1);
  if (!v.ordinary[i].empty()) throw lines.error(fmt::format("the id {} is given twice", i));
  v.ordinary[i] = std::move(token.first);
}

int64_t count_of(const Json& header, const char* key, const Lines& lines) {
  const auto it = header.find(key);
  if (it == header.end() || !it->is_number_integer() || it->get<int64_t>() < 0 || it->get<int64_t>() > (1 << 26)) {
    throw lines.error(fmt::format("the header's \"{}\" is not a count", key));
  }
  return it->get<int64_t>();
}

}  // namespace

Vocabulary parse_tiktoken(std::string_view text, std::string_view where) {
  Vocabulary v;
  v.pattern = o200k_pattern;
  Lines lines(text, where);
  std::string_view line;
  int64_t n = 0;
  while (lines.next(line)) {
    if (line.empty()) continue;
    add_ordinary(v, parse_token(line, lines), lines);
    ++n;
  }
  v.n_ordinary = static_cast<int64_t>(v.ordinary.size());
  if (n == o200k_tokens && v.n_ordinary == o200k_tokens) {
    v.special = {{o200k_end_of_text, std::string(end_of_text_name)}, {o200k_end_of_prompt, "<|endofprompt|>"}};
    v.end_of_text = o200k_end_of_text;
  }
  return v;
}

Vocabulary parse_own(std::string_view text, std::string_view where) {
  Vocabulary v;
  Lines lines(text, where);
  std::string_view line;
  if (!lines.next(line) || line != own_first_line) {
    throw lines.error(fmt::format("expected \"{}\": the file is of another version", own_first_line));
  }
  if (!lines.next(line)) throw lines.error("the header is missing");
  if (line.size() > (1 << 20)) throw lines.error("the header is too long");
  const Json header = Json::parse(line, nullptr, false);
  if (!header.is_object()) throw lines.error("the header is not a JSON object");
  if (!header.contains("pattern") || !header["pattern"].is_string()) throw lines.error("the header has no \"pattern\"");
  v.pattern = header["pattern"].get<std::string>();
  for (const char* key : {"merge_by_id", "whole_pieces"}) {
    if (!header.contains(key) || !header[key].is_boolean()) {
      throw lines.error(fmt::format("the header has no \"{}\" (true or false)", key));
    }
  }
  v.merge_by_id = header["merge_by_id"].get<bool>();
  v.whole_pieces = header["whole_pieces"].get<bool>();
  v.n_ordinary = count_of(header, "n_ordinary", lines);
  if (header.contains("end_of_text") && !header["end_of_text"].is_null()) {
    const int64_t id = count_of(header, "end_of_text", lines);
    if (id >= max_token_ids) throw lines.error("the end-of-text id is too large");
    v.end_of_text = static_cast<int32_t>(id);
  }
  const int64_t n_tokens = count_of(header, "tokens", lines);
  const int64_t n_merges = count_of(header, "merges", lines);
  const int64_t n_special = count_of(header, "special", lines);
  const auto need = [&] {
    if (!lines.next(line)) throw lines.error("the file ends too early");
  };
  for (int64_t i = 0; i < n_tokens; ++i) {
    need();
    add_ordinary(v, parse_token(line, lines), lines);
  }
  for (int64_t i = 0; i < n_merges; ++i) {
    need();
    const size_t space = std::min(line.find(' '), line.size());
    const int32_t left = parse_id(line.substr(0, space), lines);
    v.merges.emplace_back(left, parse_id(line.substr(std::min(space + 1, line.size())), lines));
  }
  for (int64_t i = 0; i < n_special; ++i) {
    need();
    auto [bytes, id] = parse_token(line, lines);
    v.special.push_back({id, std::move(bytes)});
  }
  if (lines.next(line)) throw lines.error("more lines than the header counts");
  return v;
}

void save_vocabulary(const Vocabulary& v, const std::filesystem::path& path) {
  Json header;
  header["pattern"] = v.pattern;
  header["merge_by_id"] = v.merge_by_id;
  header["whole_pieces"] = v.whole_pieces;
  header["n_ordinary"] = v.n_ordinary;
  header["end_of_text"] = v.end_of_text ? Json(*v.end_of_text) : Json(nullptr);
  int64_t n = 0;
  for (const std::string& t : v.ordinary) n += !t.empty();
  header["tokens"] = n;
  header["merges"] = v.merges.size();
  header["special"] = v.special.size();
  std::string text = fmt::format("{}\n{}\n", own_first_line, header.dump());
  for (size_t i = 0; i < v.ordinary.size(); ++i) {
    if (!v.ordinary[i].empty()) text += fmt::format("{} {}\n", base64_encode(v.ordinary[i]), i);
  }
  for (const auto& [left, right] : v.merges) text += fmt::format("{} {}\n", left, right);
  for (const auto& s : v.special) text += fmt::format("{} {}\n", base64_encode(s.text), s.id);
  write_file_atomically(path, text);
}

}  // namespace mythos
