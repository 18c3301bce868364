// The one table of configuration keys: reading, checking, writing, comparing and docs/config.md all follow it.
#pragma once

#include "config/run_config.h"
#include "config/value.h"

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mythos {

/// Where a key's value lives. The type decides what may be written there, together with KeySpec::form.
using Place = std::variant<bool& (*)(RunConfig&), int64_t& (*)(RunConfig&), double& (*)(RunConfig&),
                           std::string& (*)(RunConfig&), std::vector<std::string>& (*)(RunConfig&),
                           std::vector<double>& (*)(RunConfig&), std::vector<int64_t>& (*)(RunConfig&),
                           std::optional<int64_t>& (*)(RunConfig&), AttentionType& (*)(RunConfig&)>;

enum class Form {
  plain,       ///< as the type says
  tokens,      ///< a whole number that may be written as a float without a fraction: 3e9
  auto_count,  ///< a whole number, or "auto" (kept as 0)
  loops,       ///< a whole number, or {choices = [..]}
  pair,        ///< exactly two numbers
  texts,       ///< a text, or a list of texts
  text_list,   ///< a list of texts
};

struct KeySpec {
  std::string_view section = {};
  std::string_view name = {};
  Place place = {};
  Bearing bearing = Bearing::nothing;
  std::string_view meaning = {};  ///< one sentence for the documentation
  double low = 0;                 ///< numbers: the range, each end included ...
  double high = 0;
  bool above_low = false;   ///< ... or `low` itself not
  bool below_high = false;  ///< ... or `high` itself not
  Form form = Form::plain;
  std::vector<std::string_view> choices = {};  ///< texts: only these, if there are any
  std::string_view default_note = {};          ///< default in words, where a value does not say it
  std::vector<std::string_view> also = {};     ///< what others call it: only used for suggestions

  [[nodiscard]] std::string full_name() const { return std::string(section) + "." + std::string(name); }
};

/// All keys, section by section, in the order they are written. model.preset is the first of [model].
const std::vector<KeySpec>& config_keys();
/// "model", "tokenizer", ... in order.
std::vector<std::string> config_sections();
/// The key of this section and name, or null.
const KeySpec* find_key(std::string_view section, std::string_view name);
/// For a key that does not exist: the hint that helps most ("it belongs to [train]", "did you mean 'lr'?", ...).
std::string key_hint(std::string_view section, std::string_view name);

/// "a whole number from 1 to 16" and the like.
std::string allowed(const KeySpec& key);
/// Stores the value, or says why not ("is the text \"x\", it must be ..."); empty: stored.
std::string store(const KeySpec& key, const Value& value, RunConfig& config);
/// The value in TOML; empty where there is none (an optional that is not set, loops not yet settled).
std::string written(const KeySpec& key, const RunConfig& config);

/// The tables of docs/config.md.
std::string keys_markdown();

}  // namespace mythos
