#include "checkpoint/places.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "storage/s3.h"

#include <algorithm>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr const char* file_name = "checkpoint_places.json";
constexpr size_t most = 100;

fs::path plain(const fs::path& path) {
  std::error_code ec;
  fs::path out = fs::weakly_canonical(fs::absolute(path, ec), ec);
  if (ec) out = path.lexically_normal();
  return out.has_filename() ? out : out.parent_path();
}

std::string without_slashes(std::string text) {
  while (text.ends_with('/')) text.pop_back();
  return text;
}

// As it is written down: relative to the run's folder if it lies inside.
std::string written(const fs::path& run, const std::string& place) {
  if (is_s3_address(place)) return without_slashes(place);
  const fs::path inside = plain(place).lexically_relative(plain(run));
  return inside.empty() || *inside.begin() == ".." ? plain(place).string() : inside.string();
}

}  // namespace

std::vector<std::string> checkpoint_places(const fs::path& run) {
  std::vector<std::string> places;
  std::error_code ec;
  const fs::path path = run / file_name;
  if (!fs::exists(path, ec)) return places;
  try {
    const Json json = parse_json(read_file(path, 1 << 20), path.string());
    for (const Json& place : json.at("places")) {
      const auto text = place.get<std::string>();
      places.push_back(is_s3_address(text) ? text : (run / text).string());
    }
  } catch (const Error& e) {
    log::warn("{}: where earlier checkpoints are is not known", e.line());
  } catch (const nlohmann::json::exception&) {
    log::warn("{} is damaged: where earlier checkpoints are is not known", path.string());
  }
  return places;
}

void remember_checkpoint_place(const fs::path& run, const std::string& place) {
  const std::string now = written(run, place);
  Json places = Json::array({now});
  for (const std::string& p : checkpoint_places(run)) {
    const std::string before = written(run, p);
    if (before != now && places.size() < most) places.push_back(before);
  }
  write_file_atomically(run / file_name, Json{{"places", places}}.dump(2) + "\n");
}

bool same_place(const std::string& a, const std::string& b) {
  if (is_s3_address(a) || is_s3_address(b)) return without_slashes(a) == without_slashes(b);
  return plain(a) == plain(b);
}

}  // namespace mythos
