#include "train/run_page.h"

#include "base/file.h"
#include "base/units.h"
#include "report/page.h"
#include "report/svg.h"
#include "train/inspect_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace mythos {
namespace fs = std::filesystem;
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr size_t most_line = 1 << 20;  // of metrics.jsonl, bytes: a step's line has some hundred to some thousand
constexpr size_t most_points = 400;    // of a curve
constexpr size_t most_events = 200;    // of the history
constexpr uint64_t most_config = 1 << 20;

// metrics.jsonl by what is drawn.
struct Curves {
  std::map<std::string, Points> by_name;
  Json samples;  // the last ones, with their step

  void add(const std::string& name, double step, const Json& holder, const char* key) {
    const auto found = holder.find(key);
    if (found == holder.end() || !found->is_number()) return;
    const double value = found->get<double>();
    Points& points = by_name[name];
    // A file put together by hand may go back: the axis does not.
    if (std::isfinite(value) && (points.empty() || step > points.back().first)) points.emplace_back(step, value);
  }

  void take(const Json& line) {
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) return;
    const auto step = line["step"].get<double>();
    for (const char* key : {"loss", "lr", "grad_norm", "tokens_per_s"}) add(key, step, line, key);
    if (line.contains("held_out") && line["held_out"].is_object()) add("held_out", step, line["held_out"], "loss");
    if (line.contains("experts") && line["experts"].is_object()) add("experts", step, line["experts"], "max_over_mean");
    if (line.contains("halting") && line["halting"].is_object()) add("halting", step, line["halting"], "mean_loops");
    if (line.contains("samples") && line["samples"].is_array()) samples = line;
  }
};

Curves read_curves(const fs::path& path) {
  Curves curves;
  std::error_code ec;
  if (!fs::exists(path, ec)) return curves;
  const MappedFile file(path);
  std::string_view text = file.text();
  while (true) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return curves;  // a line that is still being written is none
    if (end <= most_line) curves.take(Json::parse(text.substr(0, end), nullptr, false));
    text.remove_prefix(end + 1);
  }
}

// Means of neighbours, so that no more points are left than can be seen.
Points thinned(const Points& points) {
  const size_t each = (points.size() + most_points - 1) / most_points;
  if (each <= 1) return points;
  Points out;
  for (size_t begin = 0; begin < points.size(); begin += each) {
    const size_t end = std::min(points.size(), begin + each);
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += points[i].first;
      y += points[i].second;
    }
    const auto n = static_cast<double>(end - begin);
    out.emplace_back(x / n, y / n);
  }
  return out;
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? html_escaped(found->get<std::string>()) : "";
}

std::vector<ChartEvent> starts(const Json& history) {
  std::vector<ChartEvent> events;
  for (const Json& e : history) {
    const auto step = e["step"].get<double>();
    if (e["event"] == "start" && step > 0) {
      events.push_back({step, fmt::format("{}: {}", e["time"].get<std::string>(), e["text"].get<std::string>())});
    }
  }
  return events;
}

std::string charts(const Curves& curves, const std::vector<ChartEvent>& events) {
  const auto of = [&](const char* name) {
    const auto found = curves.by_name.find(name);
    return found == curves.by_name.end() ? Points() : thinned(found->second);
  };
  std::string out;
  const auto chart = [&](const char* title, const char* what, std::vector<Curve> drawn) {
    const std::string picture = curve_chart(drawn, events, title, "step", what);
    if (!picture.empty()) out += fmt::format("<h2>{}</h2>\n{}", title, picture);
  };
  chart("Loss", "loss (nats per token)", {{of("loss"), false}, {of("held_out"), true}});
  if (!out.empty()) {
    out += "<p>The line is the training text, points are held-out text; an upright line is a start that went on.</p>\n";
  }
  chart("Learning rate", "learning rate", {{of("lr"), false}});
  chart("Gradient norm", "norm before clipping", {{of("grad_norm"), false}});
  chart("Speed", "tokens per second", {{of("tokens_per_s"), false}});
  chart("Balance of the experts", "busiest over the mean", {{of("experts"), false}});
  chart("Loops until a position halts", "loops", {{of("halting"), false}});
  return out;
}

std::string history_section(const Json& history) {
  if (history.empty()) return "";
  std::string out = "<h2>History</h2>\n";
  const size_t first = history.size() > most_events ? history.size() - most_events : 0;
  if (first > 0) out += fmt::format("<p>The last {} of {} events.</p>\n", most_events, history.size());
  std::vector<std::vector<std::string>> rows;
  for (size_t i = first; i < history.size(); ++i) {
    const Json& e = history[i];
    rows.push_back(
        {text_of(e, "time"), text_of(e, "event"), with_commas(e["step"].get<int64_t>()), text_of(e, "text")});
  }
  return out + html_table({"time", "event", "step", ""}, rows, TableOf::words);
}

std::string samples_section(const Json& line) {
  if (!line.is_object()) return "";
  std::string out = fmt::format("<h2>Samples at step {}</h2>\n", with_commas(line["step"].get<int64_t>()));
  for (const Json& s : line["samples"]) {
    if (s.is_object()) out += "<pre><b>" + text_of(s, "prompt") + "</b>" + text_of(s, "text") + "</pre>\n";
  }
  return out;
}

std::string standing(const Json& inspected) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, said] : inspect_run_lines(inspected)) {
    rows.push_back({html_escaped(what), html_escaped(said)});
  }
  return html_table({}, rows, TableOf::words);
}

}  // namespace

std::string run_page(const fs::path& run) {
  const Json inspected = inspect_run(run, false);
  const Json history = inspected.value("history", Json::array());
  const Curves curves = read_curves(run / "metrics.jsonl");
  const std::string name = fs::weakly_canonical(run).filename().string();
  std::string body = "<h1>" + html_escaped(name) + "</h1>\n" + standing(inspected);
  body += charts(curves, starts(history)) + samples_section(curves.samples) + history_section(history);
  std::error_code ec;
  if (fs::exists(run / "config.toml", ec)) {
    body += "<h2>Configuration</h2>\n<pre>" + html_escaped(read_file(run / "config.toml", most_config)) + "</pre>\n";
  }
  return html_page("Run " + name, body);
}

}  // namespace mythos
