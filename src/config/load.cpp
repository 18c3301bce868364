#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "config/keys.h"
#include "config/problems.h"
#include "config/run_config.h"

#include <algorithm>
#include <map>

namespace mythos {

namespace {

struct Given {
  Value value;
  Origin origin;
  std::string raw;  ///< an override's VALUE as written
};

// What the file and the overrides say about known keys; problems hold the rest.
class Collector {
 public:
  explicit Collector(Problems& problems) : problems_(problems) {}

  void file(const Value& root) {
    const auto names = config_sections();
    for (const auto& [section, content] : std::get<Value::Table>(root.data)) {
      const Origin origin{content.line, ""};
      const auto* table = content.as<Value::Table>();
      if (std::find(names.begin(), names.end(), section) == names.end()) {
        unknown_section(section, content, origin);
      } else if (table == nullptr) {
        problems_.add(origin, fmt::format("'{}' must be a section with keys: [{}]", section, section));
      } else {
        for (const auto& [key, value] : *table) take(section, key, {value, {value.line, ""}, ""});
      }
    }
  }

  void override_with(const std::string& text) {
    const size_t equals = text.find('=');
    const std::string name = trimmed(std::string_view(text).substr(0, equals));
    const size_t dot = name.find('.');
    const Origin origin{0, fmt::format("--set {}", name)};
    if (equals == std::string::npos || dot == std::string::npos) {
      problems_.add({0, fmt::format("--set {}", text)}, "an override is written section.key=VALUE");
      return;
    }
    const std::string section = name.substr(0, dot);
    const std::string key = name.substr(dot + 1);
    const auto names = config_sections();
    if (std::find(names.begin(), names.end(), section) == names.end()) {
      problems_.add(origin, fmt::format("'{}' is not a section", section), suggestion(section, names));
      return;
    }
    const std::string raw = trimmed(std::string_view(text).substr(equals + 1));
    Value value;
    value.data = raw;
    if (auto parsed = parse_toml_value(raw); parsed && parsed->as<Value::Date>() == nullptr) value = *parsed;
    take(section, key, {std::move(value), origin, raw});
  }

  [[nodiscard]] const std::map<const KeySpec*, Given>& given() const { return given_; }

 private:
  static std::string trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return "";
    return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
  }

  void unknown_section(const std::string& name, const Value& content, const Origin& origin) {
    const auto sections = config_sections();
    if (content.as<Value::Table>() != nullptr) {
      problems_.add(origin, fmt::format("[{}] is not a section", shown(name)), suggestion(name, sections));
    } else {
      problems_.add(origin, fmt::format("'{}' stands outside any section", shown(name)), hint("", name));
    }
  }

  void take(const std::string& section, const std::string& name, Given given) {
    const KeySpec* key = find_key(section, name);
    if (key == nullptr) {
      problems_.add(given.origin, fmt::format("{}.{} is not a key", section, shown(name)), hint(section, name));
      return;
    }
    given_.insert_or_assign(key, std::move(given));
  }

  // Looking for what was meant takes a while: not for problems that will not be told.
  std::string hint(const std::string& section, const std::string& name) const {
    return problems_.more_are_told() ? key_hint(section, name) : "";
  }

  static std::string shown(const std::string& name) { return describe_name(name); }

  Problems& problems_;
  std::map<const KeySpec*, Given> given_;
};

void store_given(const std::map<const KeySpec*, Given>& all, RunConfig& config, Problems& problems) {
  // In the table's order, so that the preset comes before the fields over it.
  for (const auto& key : config_keys()) {
    const auto found = all.find(&key);
    if (found == all.end()) continue;
    const Given& given = found->second;
    problems.set_origin(key.full_name(), given.origin);
    Value value = given.value;
    const bool scalar = value.as<Value::List>() == nullptr && value.as<Value::Table>() == nullptr;
    const bool text_key = std::holds_alternative<std::string& (*)(RunConfig&)>(key.place) || key.form == Form::texts;
    if (text_key && scalar && !given.origin.option.empty() && value.as<std::string>() == nullptr)
      value.data = given.raw;
    const std::string why = store(key, value, config);
    if (!why.empty()) {
      problems.add_bad(key.full_name(), fmt::format("{} {}", key.full_name(), why));
    } else if (key.section == "model" && key.name == "preset" && !config.preset.empty()) {
      try {
        config.model = preset(config.preset);
      } catch (const Error& e) {
        problems.add_bad("model.preset", fmt::format("model.preset is {}, which is no preset", describe(value)),
                         e.hint());
      }
    }
  }
  if (config.vocab_size) config.model.vocab_size = *config.vocab_size;
}

}  // namespace

RunConfig parse_config(std::string_view text, std::string_view name, std::string_view run_name,
                       std::span<const std::string> overrides) {
  const Value root = parse_toml(text, name);
  Problems problems;
  Collector collector(problems);
  collector.file(root);
  for (const auto& one : overrides) collector.override_with(one);

  RunConfig config;
  store_given(collector.given(), config, problems);
  if (!problems.has_origin("train.seq_len")) {
    config.train.seq_len = std::min(config.train.seq_len, std::max<int64_t>(config.model.max_seq_len, 1));
  }
  if (config.train.loops.empty()) config.train.loops = {config.model.max_loop_iters};
  if (config.run.name.empty()) config.run.name = run_name;
  if (config.run.dir.empty()) config.run.dir = "runs/" + config.run.name;
  if (config.checkpoint.dir.empty()) config.checkpoint.dir = config.run.dir + "/checkpoints";

  check_together(config, problems);
  problems.throw_if_any(name);
  return config;
}

RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  std::string text;
  try {
    text = read_file(path, uint64_t{1} << 20);
  } catch (const Error& e) {
    throw usage_error(e.what(), e.hint().empty() ? "give the path of a configuration file" : e.hint());
  }
  return parse_config(text, path.string(), path.stem().string(), overrides);
}

}  // namespace mythos
