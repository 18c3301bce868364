#include "report/eval_page.h"

#include "base/units.h"
#include "report/eval_text.h"
#include "report/page.h"
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>

namespace mythos {
namespace {

// An error behind a plus-minus sign instead of the terminal's "+-".
std::string with_sign(double value, const std::optional<double>& error, int decimals) {
  return error ? fmt::format("{:.{}f} &plusmn; {:.{}f}", value, decimals, *error, decimals)
               : fmt::format("{:.{}f}", value, decimals);
}

std::string percent(double share, const std::optional<double>& error) {
  return with_sign(100 * share, error ? std::optional(100 * *error) : std::nullopt, 1) + " %";
}

std::string head(const EvalReport& r) {
  return fmt::format("<h1>{}</h1>\n<p>step {}, {} tokens, {} parameters, vocabulary {}; trained with {} loops</p>\n",
                     html_escaped(r.checkpoint), with_commas(r.step), with_commas(r.tokens), with_commas(r.parameters),
                     with_commas(r.vocab_size), r.trained_loops);
}

std::string loops_section(const EvalReport& r) {
  const LoopSweep& sweep = *r.sweep;
  const Evaluation& own = sweep.trained;
  std::vector<ChartPoint> points, differences;
  std::vector<std::vector<std::string>> rows;
  for (const Evaluation& e : sweep.by_loops) {
    const bool trained = e.loops == r.trained_loops;
    points.push_back({fmt::format("{}", e.loops), e.loss, e.loss_error,
                      fmt::format("{} loops: loss {}", e.loops, with_error(e.loss, e.loss_error, 4)), trained});
    differences.push_back({points.back().label, e.difference, e.difference_error,
                           fmt::format("{} loops: {}", e.loops, with_error(e.difference, e.difference_error, 4)),
                           trained});
    rows.push_back({fmt::format("{}{}", e.loops, trained ? " (trained)" : ""), with_sign(e.loss, e.loss_error, 4),
                    trained ? "" : with_sign(e.difference, e.difference_error, 4),
                    with_sign(e.perplexity(), e.perplexity_error(), 2),
                    with_sign(e.bits_per_byte(), e.bits_per_byte_error, 4), percent(e.accuracy, e.accuracy_error)});
  }
  std::string out = "<h2>Loss by loop count</h2>\n";
  out += fmt::format(
      "<p>{} documents, {} tokens, {} bytes. Bars are one standard error, taken by {}. The difference is to {} loops "
      "on "
      "the same text.</p>\n",
      with_commas(own.documents), with_commas(own.tokens), with_commas(own.bytes),
      own.by_window ? "window" : "document", r.trained_loops);
  out += line_chart(points, "Loss by loop count", "loops", "loss (nats per token)");
  out += line_chart(differences, fmt::format("Difference of the loss to {} loops", r.trained_loops), "loops",
                    fmt::format("difference to {} loops", r.trained_loops));
  return out + html_table({"loops", "loss", "difference", "perplexity", "bits per byte", "top-1"}, rows);
}

std::string radius_section(const EvalReport& r) {
  std::vector<ChartPoint> bars;
  for (size_t i = 0; i < r.radius.counts.size(); ++i) {
    const double from = r.radius.edges[i], to = r.radius.edges[i + 1];
    const auto n = r.radius.counts[i];
    bars.push_back({fmt::format("{:.4f}", (from + to) / 2), static_cast<double>(n), std::nullopt,
                    fmt::format("{:.4f} to {:.4f}: {} channels", from, to, n), false});
  }
  return fmt::format(
             "<h2>rho(A): what the loop keeps of its state</h2>\n<p>From {:.4f} to {:.4f} over channels: "
             "<span class=\"{}\">{} {} to {}</span>.</p>\n",
             r.radius.min, r.radius.max, r.radius.within() ? "ok" : "not",
             r.radius.within() ? "OK, within" : "not within", SpectralRadius::low, SpectralRadius::high) +
         bar_chart(bars, "Channels by A", "A", "channels");
}

std::string halting_section(const EvalReport& r) {
  const LoopSummary& loops = r.sweep->loops;
  std::vector<ChartPoint> bars;
  const auto add = [&](const std::string& label, double share, bool marked) {
    bars.push_back({label, 100 * share, std::nullopt, fmt::format("{}: {:.1f} %", label, 100 * share), marked});
  };
  const std::vector<double> halts = loops.halts_in_loop();
  for (size_t t = 0; t < halts.size(); ++t) add(fmt::format("{}", t + 1), halts[t], false);
  if (loops.never_halted() > 0) add("later", loops.never_halted(), true);
  return fmt::format(
             "<h2>Halting</h2>\n<p>With {} loops positions run {:.2f} on average, and {:.1f} % never halt.</p>\n",
             r.trained_loops, r.sweep->trained.mean_loops, 100 * r.sweep->trained.never_halted) +
         bar_chart(bars, "Positions by the loop in which they halt", "loop", "positions (%)");
}

std::string experts_section(const EvalReport& r) {
  HeatMap map;
  std::vector<std::vector<std::string>> rows;
  for (const ExpertLoad& load : r.sweep->loops.experts_by_loop) {
    const double n = static_cast<double>(load.share.size());
    std::vector<double> relative;
    for (const double share : load.share) relative.push_back(share * n);
    if (load.max_over_mean() == 0) break;  // this loop and those after it did not run
    map.full = std::max({map.full, 2.0, load.max_over_mean()});
    map.rows.push_back(std::move(relative));
    map.row_labels.push_back(fmt::format("{}", map.rows.size()));
    rows.push_back({map.row_labels.back(), fmt::format("{:.2f} &times;", load.max_over_mean()),
                    fmt::format("{:.2f} bits ({:.1f} %)", load.entropy(), 100 * load.entropy_fraction()),
                    fmt::format("{}", load.unused())});
  }
  map.x_label = "expert";
  map.y_label = "loop";
  map.unit = " times an even load";
  return fmt::format(
             "<h2>Load of the experts</h2>\n<p>By loop, {} for a token. The strongest colour is {:.1f} times an even "
             "load; a cross is an expert that no token chose.</p>\n",
             r.experts_per_token, map.full) +
         heat_map(map, "Load of the experts by loop") +
         html_table({"loop", "busiest", "entropy", "never chosen"}, rows);
}

std::string tasks_section(const EvalReport& r) {
  std::string out = "<h2>Tasks</h2>\n";
  for (const ChoiceResult& task : r.tasks) {
    std::vector<std::vector<std::string>> rows;
    const auto add = [&](const ChoiceAccuracy& a) {
      rows.push_back({fmt::format("{}{}", a.loops, a.loops == r.trained_loops ? " (trained)" : ""),
                      percent(a.acc, a.acc_error), percent(a.acc_norm, a.acc_norm_error),
                      percent(a.acc_bytes, a.acc_bytes_error)});
    };
    for (const auto& a : task.by_loops) add(a);
    if (std::none_of(task.by_loops.begin(), task.by_loops.end(),
                     [&](const auto& a) { return a.loops == r.trained_loops; }))
      add(task.trained);
    out += fmt::format(
        "<p>{}: {} questions{}; by chance {:.1f} %</p>\n", html_escaped(task.file), with_commas(task.questions),
        task.cut > 0 ? fmt::format(", {} cut at the left", with_commas(task.cut)) : "", 100 * task.chance);
    out += html_table({"loops", "acc", "acc_norm", "acc_bytes"}, rows);
  }
  return out;
}

std::string samples_section(const EvalReport& r) {
  std::string out = "<h2>Samples</h2>\n";
  for (const auto& s : r.samples) {
    out += "<pre><b>" + html_escaped(s.prompt) + "</b>" + html_escaped(s.text) + "</pre>\n";
  }
  return out;
}

}  // namespace

std::string eval_page(const EvalReport& r) {
  std::string out = head(r);
  if (r.sweep) out += loops_section(r);
  out += radius_section(r);
  if (r.sweep) out += halting_section(r) + experts_section(r);
  if (!r.tasks.empty()) out += tasks_section(r);
  if (!r.samples.empty()) out += samples_section(r);
  return html_page("Evaluation of " + r.checkpoint, out);
}

}  // namespace mythos
