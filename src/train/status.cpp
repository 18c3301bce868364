#include "train/status.h"

#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/machine.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr const char* file_name = "status.json";

double number(const Json& json, const char* key, double otherwise = 0) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}
int64_t integer(const Json& json, const char* key, int64_t otherwise = 0) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}
std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Json to_json(const RunStatus& s) {
  return {{"state", s.state},
          {"message", s.message},
          {"pid", s.pid},
          {"host", s.host},
          {"started", s.started},
          {"updated", s.updated},
          {"step", s.step},
          {"steps", s.steps},
          {"tokens", s.tokens},
          {"tokens_per_s", s.tokens_per_second},
          {"mfu", s.mfu},
          {"eta_seconds", s.eta_seconds >= 0 ? Json(s.eta_seconds) : Json(nullptr)},
          {"hours", s.hours},
          {"price_per_hour", s.price_per_hour},
          {"checkpoint", s.checkpoint_step >= 0 ? Json(s.checkpoint) : Json(nullptr)},
          {"checkpoint_step", s.checkpoint_step >= 0 ? Json(s.checkpoint_step) : Json(nullptr)}};
}

std::optional<RunStatus> run_status_from(const Json& json) {
  if (!json.is_object() || text(json, "state").empty()) return std::nullopt;
  RunStatus s;
  s.state = text(json, "state");
  s.message = text(json, "message");
  s.pid = integer(json, "pid");
  s.host = text(json, "host");
  s.started = text(json, "started");
  s.updated = text(json, "updated");
  s.step = integer(json, "step");
  s.steps = integer(json, "steps");
  s.tokens = integer(json, "tokens");
  s.tokens_per_second = number(json, "tokens_per_s");
  s.mfu = number(json, "mfu");
  s.eta_seconds = number(json, "eta_seconds", -1);
  s.hours = number(json, "hours");
  s.price_per_hour = number(json, "price_per_hour");
  s.checkpoint = text(json, "checkpoint");
  s.checkpoint_step = integer(json, "checkpoint_step", -1);
  return s;
}

void write_status(const fs::path& run, const RunStatus& status) {
  const fs::path temporary = run / fmt::format(".{}.new", file_name);
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << to_json(status).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    out.close();
    if (!out) {
      ::unlink(temporary.c_str());
      return;
    }
  }
  if (::rename(temporary.c_str(), (run / file_name).c_str()) != 0) ::unlink(temporary.c_str());
}

std::string one_line(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  const std::string text = ours != nullptr ? ours->line() : error.what();
  return text.substr(0, text.find('\n'));
}

ObservedRun observe_run(const fs::path& run) {
  ObservedRun seen;
  const fs::path file = run / file_name;
  std::error_code ec;
  if (fs::is_regular_file(file, ec)) {
    try {
      seen.status = run_status_from(parse_json(read_file(file, 1 << 20), file.string()));
    } catch (const Error&) {
      // Another program's file, or one that a power cut emptied: as if there were none.
    }
    struct stat info {};
    if (seen.status && ::stat(file.c_str(), &info) == 0) {
      seen.age_seconds = std::max(0.0, std::difftime(std::time(nullptr), info.st_mtime));
    }
  }
  const bool running = seen.status && seen.status->state == "running";
  if (FolderLock::is_held(run)) {
    // A process that holds the folder and did not write the status has not got that far.
    const bool here = seen.status && seen.status->host == host_name();
    const bool writer_lives = here && (::kill(static_cast<pid_t>(seen.status->pid), 0) == 0 || errno == EPERM);
    seen.state = writer_lives || (running && !here) ? seen.status->state : "starting";
  } else if (seen.status) {
    seen.state = running ? "crashed" : seen.status->state;
  }
  return seen;
}

}  // namespace mythos
