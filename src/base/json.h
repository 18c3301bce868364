// JSON for results, metrics and file headers. Keys keep the order they were written in.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string_view>

namespace mythos {
using Json = nlohmann::ordered_json;

/// What parse_json takes from a file it does not trust: copying or printing deep JSON recurses, and an object of Json
/// finds its keys one by one.
struct JsonLimits {
  size_t bytes = size_t{8} << 20;
  size_t depth = 64;
  size_t keys_of_object = 1024;
};

/// Parses a whole text. Throws Error "WHAT is not valid JSON ..." or naming the limit.
Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});
}  // namespace mythos
