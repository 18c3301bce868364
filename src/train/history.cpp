#include "train/history.h"

#include "base/error.h"
#include "checkpoint/meta.h"

#include <fmt/chrono.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::streamoff most_read = 1 << 20;

// The whole lines in a file's last megabyte, the newest first, until `take` is content.
void lines_from_end(const fs::path& path, const std::function<bool(std::string_view)>& take) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - most_read));
  std::string text(static_cast<size_t>(std::min(size, most_read)), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  size_t end = text.rfind('\n');
  while (end != std::string::npos && end > 0) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    if (take(std::string_view(text).substr(begin, end - begin))) return;
    end = before;
  }
}

std::string time_of_change(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return "an unknown time";
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(info.st_mtime));
}

AppendFile opened(const fs::path& path) {
  try {
    return AppendFile(path);
  } catch (const Error&) {  // it says what happened, and is not what the run stands on
    return {};
  }
}

}  // namespace

Json last_step_of(const fs::path& run) {
  Json found;
  lines_from_end(run / "metrics.jsonl", [&](std::string_view line) {
    Json json = Json::parse(line, nullptr, false);
    const bool step = json.is_object() && json.contains("loss") && json.contains("step");
    if (step) found = std::move(json);
    return step;
  });
  return found;
}

Json read_history(const fs::path& run) {
  Json events = Json::array();
  lines_from_end(run / "history.jsonl", [&](std::string_view line) {
    Json json = Json::parse(line, nullptr, false);
    const auto is_text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
    const bool whole = json.is_object() && is_text("time") && is_text("event") && is_text("text") &&
                       json.contains("step") && json["step"].is_number_integer();
    if (whole) events.push_back(std::move(json));
    return false;
  });
  std::reverse(events.begin(), events.end());
  return events;
}

History::History(const fs::path& run) : file_(opened(run / "history.jsonl")) {
  const Json events = read_history(run);
  std::string began;
  for (const Json& e : events) {
    if (e["event"] == "start") began = e["time"];
    if (e["event"] == "end" || e["event"] == "lost") began.clear();
  }
  if (began.empty()) return;
  const Json last = last_step_of(run);
  const int64_t step = last.is_object() && last["step"].is_number_integer() ? last["step"].get<int64_t>() : 0;
  add("lost", step,
      fmt::format("the start of {} ended without a word (killed, or the machine went down) after step {}, last heard "
                  "of at {}",
                  began, step, step > 0 ? time_of_change(run / "metrics.jsonl") : began));
}

void History::add(std::string_view event, int64_t step, std::string_view text) {
  const std::lock_guard lock(mutex_);
  file_.write(Json{{"time", utc_now()}, {"event", event}, {"step", step}, {"text", text}}.dump(
                  -1, ' ', false, Json::error_handler_t::replace) +
              "\n");
}

}  // namespace mythos
