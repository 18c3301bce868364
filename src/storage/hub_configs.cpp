#include "storage/hub_configs.h"

#include <algorithm>
#include <optional>

namespace mythos {
namespace {

constexpr size_t most_lines = 20'000;
constexpr size_t most_configurations = 5'000;

// A line of the list, taken apart: its indentation, how deep the dashes before it lead, "key: value".
struct Line {
  size_t indent = 0;   // of the text behind the dashes
  size_t dashes = 0;   // list items that begin here
  size_t dash_at = 0;  // of the first dash
  std::string key;     // "" for an item that is a value alone
  std::string value;
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// Cuts a word off the front: quoted, or up to one of `ends`. Without its comment.
std::string take_word(std::string_view& text, std::string_view ends) {
  text = trim(text);
  std::string word;
  if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
    const char quote = text[0];
    size_t i = 1;
    for (; i < text.size(); ++i) {
      if (quote == '\'' && text[i] == quote && i + 1 < text.size() && text[i + 1] == quote)
        ++i;
      else if (text[i] == quote)
        break;
      else if (quote == '"' && text[i] == '\\' && i + 1 < text.size())
        ++i;
      word += text[i];
    }
    text.remove_prefix(std::min(i + 1, text.size()));
    return word;
  }
  size_t i = 0;
  while (i < text.size() && ends.find(text[i]) == std::string_view::npos &&
         !(text[i] == '#' && (i == 0 || text[i - 1] == ' '))) {
    ++i;
  }
  word = trim(text.substr(0, i));
  text.remove_prefix(i);
  return word;
}

// "a", ["a", "b"], [a, b]
std::vector<std::string> words_of(std::string_view value) {
  std::vector<std::string> words;
  value = trim(value);
  if (value.empty() || value[0] == '#') return words;
  if (value[0] != '[') {
    words.push_back(take_word(value, ""));
    return words;
  }
  value.remove_prefix(1);
  while (true) {
    std::string word = take_word(value, ",]");
    if (!word.empty()) words.push_back(std::move(word));
    value = trim(value);
    if (value.empty() || value[0] != ',') return words;
    value.remove_prefix(1);
  }
}

std::optional<Line> take_apart(std::string_view text) {
  Line line;
  size_t at = std::min(text.find_first_not_of(' '), text.size());
  while (at + 1 < text.size() && text[at] == '-' && text[at + 1] == ' ') {
    if (line.dashes++ == 0) line.dash_at = at;
    at = std::min(text.find_first_not_of(' ', at + 1), text.size());
  }
  if (at < text.size() && trim(text.substr(at)) == "-") {
    if (line.dashes++ == 0) line.dash_at = at;
    line.indent = at + 1;
    return line;
  }
  line.indent = at;
  std::string_view rest = trim(text.substr(at));
  if (rest.empty() || rest[0] == '#') {
    if (line.dashes == 0) return {};
    return line;
  }
  // "key:" or "key: value"; a word with a colon inside is a value.
  std::string_view after = rest;
  const std::string key = rest[0] == '[' ? "" : take_word(after, ":");
  if (!key.empty() && after.starts_with(":") && (after.size() == 1 || after[1] == ' ')) {
    line.key = key;
    rest = trim(after.substr(1));
  }
  line.value = rest;
  return line;
}

// Follows the list line by line.
class Reader {
 public:
  void take(const Line& line) {
    if (line.dashes > 0 && (!configs_dash_ || line.dash_at <= *configs_dash_)) {
      configs_dash_ = line.dash_at;
      configurations.emplace_back();
      section_ = Section::none;
      config_indent_ = line.indent;
    }
    if (configurations.empty()) return;
    HubConfiguration& config = configurations.back();
    const bool at_config = line.dashes == 0 || line.dash_at == configs_dash_;
    if (at_config && line.indent <= config_indent_ && !line.key.empty()) {
      config_indent_ = line.indent;
      section_ = line.key == "data_files" ? Section::data_files : Section::none;
      patterns_open_ = false;
      if (line.key == "config_name") config.name = first_word(line.value);
      if (line.key == "default") config.is_default = first_word(line.value) == "true";
      if (line.key == "data_dir" && config.splits.empty()) {
        const std::string folder = first_word(line.value);
        config.splits.push_back({"", {folder.empty() || folder == "." ? "**" : folder + "/**"}});
        from_folder_ = configurations.size();
      }
      if (section_ == Section::data_files) {
        if (from_folder_ == configurations.size()) config.splits.clear();
        add_patterns(config, words_of(line.value));
      }
      return;
    }
    if (section_ != Section::data_files) return;
    if (line.key.empty()) {  // a pattern of a list
      add_patterns(config, words_of(line.value));
    } else if (line.key == "split" || line.key == "path") {
      // An item begins with its dash.
      if (line.dashes > 0 || config.splits.empty()) config.splits.emplace_back();
      patterns_open_ = line.key == "path";
      if (line.key == "split") config.splits.back().name = first_word(line.value);
      if (line.key == "path") add_patterns(config, words_of(line.value));
    } else if (line.dashes == 0) {  // "train: path"
      config.splits.push_back({line.key, {}});
      patterns_open_ = true;
      add_patterns(config, words_of(line.value));
    }
  }

  std::vector<HubConfiguration> configurations;

 private:
  enum class Section { none, data_files };

  static std::string first_word(std::string_view value) {
    const auto words = words_of(value);
    return words.empty() ? "" : words[0];
  }
  void add_patterns(HubConfiguration& config, std::vector<std::string> words) {
    for (std::string& word : words) {
      if (!patterns_open_ && config.splits.empty()) config.splits.emplace_back();
      config.splits.back().patterns.push_back(std::move(word));
    }
  }

  std::optional<size_t> configs_dash_;
  size_t config_indent_ = 0;
  Section section_ = Section::none;
  bool patterns_open_ = false;
  size_t from_folder_ = 0;
};

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

std::vector<HubConfiguration> read_configurations(std::string_view readme) {
  if (readme.starts_with("\xEF\xBB\xBF")) readme.remove_prefix(3);
  if (trim(take_line(readme)) != "---") return {};
  Reader reader;
  bool inside = false;
  for (size_t n = 0; n < most_lines && !readme.empty();) {
    const std::string_view text = take_line(readme);
    if (trim(text) == "---") break;
    const bool top = !text.empty() && text[0] != ' ' && text[0] != '-' && text[0] != '#' && !trim(text).empty();
    if (top) {
      if (inside) break;
      inside = trim(text.substr(0, text.find('#'))) == "configs:";
      continue;
    }
    if (!inside) continue;
    ++n;
    if (const auto line = take_apart(text)) reader.take(*line);
    if (reader.configurations.size() > most_configurations) break;
  }
  std::erase_if(reader.configurations, [](const auto& config) { return config.name.empty(); });
  return std::move(reader.configurations);
}

}  // namespace mythos
