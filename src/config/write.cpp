#include "config/keys.h"
#include "config/run_config.h"

#include <fmt/format.h>

namespace mythos {

std::string_view to_string(Bearing bearing) {
  switch (bearing) {
    case Bearing::model:
      return "model";
    case Bearing::data:
      return "data";
    case Bearing::batch:
      return "batch";
    case Bearing::schedule:
      return "schedule";
    case Bearing::optimizer:
      return "optimizer";
    case Bearing::nothing:
      break;
  }
  return "nothing";
}

std::string to_toml(const RunConfig& config) {
  std::string out = "# The configuration of a run with every value in use.\n";
  std::string_view section;
  for (const auto& key : config_keys()) {
    if (key.section != section) {
      section = key.section;
      out += fmt::format("\n[{}]\n", section);
    }
    const std::string text = written(key, config);
    if (text.empty()) {
      out += fmt::format("# {}: {}\n", key.name, key.default_note);
    } else {
      out += fmt::format("{} = {}\n", key.name, text);
    }
  }
  return out;
}

std::vector<Difference> diff(const RunConfig& a, const RunConfig& b) {
  std::vector<Difference> out;
  for (const auto& key : config_keys()) {
    std::string left = written(key, a);
    std::string right = written(key, b);
    if (left == right) continue;
    const auto or_unset = [](std::string text) { return text.empty() ? std::string("unset") : text; };
    out.push_back({key.full_name(), or_unset(std::move(left)), or_unset(std::move(right)), key.bearing});
  }
  return out;
}

}  // namespace mythos
