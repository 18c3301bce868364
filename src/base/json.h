// JSON for results, metrics and file headers. Keys keep the order they were written in.
#pragma once

#include <nlohmann/json.hpp>

namespace mythos {
using Json = nlohmann::ordered_json;
}
