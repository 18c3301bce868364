#include "train/inspect_run.h"

#include "base/error.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "checkpoint/store.h"
#include "config/run_config.h"
#include "infer/checkpoint_io.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "train/history.h"
#include "train/status.h"

#include <algorithm>
#include <optional>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr size_t most_events = 40;  // that are shown

struct Found {
  Checkpoint checkpoint;
  const char* verified;
};

std::optional<Found> newest(const CheckpointStore& store, const ObservedRun& seen, bool verify) {
  if (!verify && seen.status && seen.status->checkpoint_step >= 0) {
    try {
      auto c = store.header_of(seen.status->checkpoint_step);
      if (c && c->has_optimizer) return Found{std::move(*c), "when written"};
    } catch (const Error&) {
      // Pruned, moved or damaged since: looked for below.
    }
  }
  if (store.list().empty()) return std::nullopt;
  auto c = store.newest(CheckpointStore::Damaged::leave);
  if (!c) return std::nullopt;
  return Found{std::move(*c), "now"};
}

void add_status(Json& json, const ObservedRun& seen) {
  json["state"] = seen.state;
  if (!seen.status || seen.state == "starting") return;
  const RunStatus& s = *seen.status;
  const bool running = seen.state == "running";
  if (!s.message.empty()) json["message"] = s.message;
  if (running) json["pid"] = s.pid;
  json["host"] = s.host;
  json["updated"] = s.updated;
  json["seconds_since_update"] = seen.age_seconds;
  json["step"] = s.step;
  json["steps"] = s.steps;
  json["tokens"] = s.tokens;
  if (s.tokens_per_second > 0) {
    json["tokens_per_s"] = s.tokens_per_second;
    json["mfu"] = s.mfu;
  }
  if (s.eta_seconds >= 0) json["eta_seconds"] = std::max(0.0, s.eta_seconds - (running ? seen.age_seconds : 0));
  // The time since the status was written is trained and paid for, too.
  const double hours = s.hours + (running ? seen.age_seconds / 3600 : 0);
  json["hours"] = hours;
  if (s.price_per_hour > 0) json["cost_usd"] = hours * s.price_per_hour;
}

}  // namespace

Json inspect_run(const fs::path& run, bool verify) {
  std::error_code ec;
  const bool has_config = fs::exists(run / "config.toml", ec);
  const CheckpointStore store(checkpoints_of(run), 1);
  const auto steps = store.list();
  if (!has_config && steps.empty()) {
    throw usage_error(fmt::format("{} is neither a run nor a folder of checkpoints", run.string()),
                      "a run's folder holds config.toml and checkpoints/");
  }
  const ObservedRun seen = observe_run(run);
  Json json = {{"run", run.string()}};
  add_status(json, seen);
  const Json last = last_step_of(run);
  if (last.is_object()) {
    // The metrics have every step, the status that of the last few seconds.
    const auto step = last.value("step", int64_t{0});
    if (step > json.value("step", int64_t{0}) || !json.contains("step")) {
      json["step"] = step;
      json["tokens"] = last.value("tokens", int64_t{0});
    }
    if (last["loss"].is_number()) json["loss"] = last["loss"];
    if (!json.contains("tokens_per_s")) json["tokens_per_s"] = last.value("tokens_per_s", 0.0);
  }
  json["checkpoints"] = steps;
  if (const auto found = newest(store, seen, verify)) {
    const CheckpointMeta& meta = found->checkpoint.meta;
    json["newest_verified"] = {{"path", found->checkpoint.path().string()},
                               {"step", meta.step},
                               {"tokens", meta.tokens},
                               {"created", meta.created},
                               {"verified", found->verified}};
    const auto train = parse_config(meta.config, "the checkpoint's config", "run").train;
    json["parameters"] = parameter_count(meta.model);
    json["train_flops_per_token"] = flops_per_token(meta.model, train.seq_len, train.loops).train;
    json["checkpoint_bytes"] = checkpoint_bytes(meta.model);
  }
  if (last.is_object()) json["last_step"] = last;
  json["history"] = read_history(run);
  return json;
}

std::vector<std::pair<std::string, std::string>> inspect_run_lines(const Json& json) {
  std::vector<std::pair<std::string, std::string>> lines;
  const auto line = [&](const char* what, const std::string& value) { lines.emplace_back(what, value); };
  const auto number = [&](const char* key) { return json.value(key, 0.0); };
  const auto state = json.at("state").get<std::string>();
  line("run", json.at("run").get<std::string>());
  std::string said = state;
  if (state == "crashed") said += ": its process is gone and did not say good-bye; the same command goes on";
  if (json.contains("message")) said += ": " + json["message"].get<std::string>();
  if (state == "running")
    said += fmt::format(", process {} on {}", json.value("pid", int64_t{0}), json.value("host", ""));
  if (json.contains("seconds_since_update"))
    said += fmt::format(" ({} ago)", duration_text(number("seconds_since_update")));
  line("state", said);
  if (json.contains("step")) {
    std::string at = with_commas(json.value("step", int64_t{0}));
    if (json.contains("steps")) {
      const auto steps = std::max<int64_t>(1, json.value("steps", int64_t{0}));
      at += fmt::format(" of {} ({:.1f}%)", with_commas(steps), 100 * number("step") / static_cast<double>(steps));
    }
    at += fmt::format(", {} tokens", with_commas(json.value("tokens", int64_t{0})));
    if (json.contains("loss")) at += fmt::format(", loss {:.4f}", number("loss"));
    line("step", at);
  }
  if (json.contains("tokens_per_s")) {
    std::string speed = fmt::format("{} tokens/s", with_commas(static_cast<int64_t>(number("tokens_per_s"))));
    if (json.contains("mfu")) speed += fmt::format(", mfu {:.1f}%", 100 * number("mfu"));
    line("speed", speed);
  }
  if (json.contains("eta_seconds") && state != "finished") line("eta", duration_text(number("eta_seconds")));
  if (json.contains("hours")) line("trained", duration_text(3600 * number("hours")));
  if (json.contains("cost_usd")) line("cost", fmt::format("${:.2f} so far", number("cost_usd")));
  if (json.contains("newest_verified")) {
    const Json& c = json["newest_verified"];
    line("checkpoint", fmt::format("{} (step {}, {} tokens, saved {}, verified {})", c.value("path", ""),
                                   with_commas(c.value("step", int64_t{0})), with_commas(c.value("tokens", int64_t{0})),
                                   c.value("created", ""), c.value("verified", "")));
    line("model", fmt::format("{} parameters", with_commas(json.value("parameters", int64_t{0}))));
  } else {
    line("checkpoint", "none yet");
  }
  return lines;
}

std::string inspect_run_text(const Json& json) {
  std::string text;
  const auto line = [&](const std::string& what, const std::string& value) {
    text += fmt::format("{:<12} {}\n", what, value);
  };
  for (const auto& [what, value] : inspect_run_lines(json)) line(what, value);
  const Json history = json.value("history", Json::array());
  const size_t first = history.size() > most_events ? history.size() - most_events : 0;
  if (first > 0) line("history", fmt::format("the last {} of {} events; --json has all", most_events, history.size()));
  for (size_t i = first; i < history.size(); ++i) {
    const Json& e = history[i];
    line(i == 0 ? "history" : "",
         fmt::format("{}  {:<7}  step {:>6}  {}", e["time"].get<std::string>(), e["event"].get<std::string>(),
                     with_commas(e["step"].get<int64_t>()), e["text"].get<std::string>()));
  }
  return text;
}

}  // namespace mythos
