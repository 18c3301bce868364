#include "base/json.h"

#include "base/error.h"

#include <vector>

namespace mythos {

Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    throw failure(fmt::format("{} has {} bytes of JSON, more than the {} allowed", what, text.size(), limits.bytes));
  }
  // The reader takes a zero byte for the end of the text.
  if (text.find('\0') != std::string_view::npos) throw failure(fmt::format("{} is not valid JSON: zero byte", what));
  std::vector<size_t> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys.push_back(0);
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && ++keys.back() > limits.keys_of_object) {
      throw failure(fmt::format("{} has a JSON object with more than {} keys", what, limits.keys_of_object));
    }
    if (static_cast<size_t>(depth) > limits.depth) {
      throw failure(fmt::format("{} has JSON nested deeper than {}", what, limits.depth));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::detail::parse_error& e) {
    throw failure(fmt::format("{} is not valid JSON at byte {}", what, e.byte));
  } catch (const nlohmann::detail::exception&) {
    throw failure(fmt::format("{} is not valid JSON: a number is out of range", what));
  }
}

}  // namespace mythos
