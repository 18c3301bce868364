#include "cli/common.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/signals.h"
#include "base/units.h"

#include <ATen/Parallel.h>
#include <cerrno>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace mythos::cli {

void add_overrides(CLI::App& command, std::vector<std::string>& overrides, const char* what) {
  command.add_option("--set", overrides, fmt::format("section.key=VALUE over {}; may be repeated", what))
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("KEY=VALUE");
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw failure(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
}

void print_json(const Json& json) { print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

std::vector<int64_t> integers(const std::string& text, const char* option) {
  std::vector<int64_t> out;
  const char* at = text.data();
  const char* const last = at + text.size();
  while (at < last) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(at, last, value);
    if (error != std::errc() || (end != last && *end != ',')) break;
    out.push_back(value);
    at = end == last ? last : end + 1;
    if (at == last && end != last) break;  // a comma at the end
    if (end == last) return out;
  }
  throw usage_error(fmt::format("{} is '{}', it must be whole numbers with commas between, like 1,2,4", option, text));
}

void stop_if_asked(const std::string& what) {
  if (stop_requested()) throw Error(static_cast<ExitCode>(128 + stop_signal()), what);
}

void set_threads(int64_t asked) { at::set_num_threads(static_cast<int>(asked > 0 ? asked : default_threads())); }

at::ScalarType dtype_from(const std::string& name) {
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float64" || name == "fp64") return at::kDouble;
  throw usage_error(fmt::format("no dtype is named '{}'", name), suggestion(name, {"float32", "bfloat16", "float64"}));
}

}  // namespace mythos::cli
