#include "report/eval_text.h"

#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>

namespace mythos {
namespace {

constexpr size_t bar_width = 32;

std::string bar(double value, double most) {
  if (most <= 0 || value <= 0) return "";
  return std::string(std::max<size_t>(1, static_cast<size_t>(value / most * bar_width + 0.5)), '#');
}

std::optional<double> percent(const std::optional<double>& share) {
  if (!share) return std::nullopt;
  return 100 * *share;
}

std::string share_text(double share, const std::optional<double>& error) {
  return with_error(100 * share, percent(error), 1) + "%";
}

std::string halting_text(const EvalReport& r) {
  const LoopSummary& loops = r.sweep->loops;
  std::string out = fmt::format("halting      {:.2f} loops on average, {:.1f}% of positions never halt; in loop\n",
                                r.sweep->trained.mean_loops, 100 * r.sweep->trained.never_halted);
  const std::vector<double> halts = loops.halts_in_loop();
  const double never = loops.never_halted();
  const double most = std::max(never, *std::max_element(halts.begin(), halts.end()));
  const auto line = [&](const std::string& name, double share) {
    const std::string drawn = bar(share, most);
    out += fmt::format("  {:<9}  {:5.1f}%{}{}\n", name, 100 * share, drawn.empty() ? "" : "  ", drawn);
  };
  // Loops after the one in which the last position halts say nothing.
  for (size_t t = 0; t < halts.size() && (t == 0 || loops.halted_by_loop[t - 1] < 1); ++t) {
    line(fmt::format("{}", t + 1), halts[t]);
  }
  if (never > 0) line("later", never);
  return out;
}

std::string loops_table(const EvalReport& r) {
  std::string out = fmt::format("loops        {:<18} {:<19} {:<19} {:<18} {}\n", "loss",
                                fmt::format("against {}", r.trained_loops), "perplexity", "bits per byte", "top-1");
  for (const Evaluation& e : r.sweep->by_loops) {
    const bool same = e.loops == r.trained_loops;
    const std::string difference =
        same ? "" : (e.difference < 0 ? "" : "+") + with_error(e.difference, e.difference_error, 4);
    out += fmt::format("  {:<9}  {:<18} {:<19} {:<19} {:<18} {}{}\n", e.loops, with_error(e.loss, e.loss_error, 4),
                       difference, with_error(e.perplexity(), e.perplexity_error(), 2),
                       with_error(e.bits_per_byte(), e.bits_per_byte_error, 4),
                       share_text(e.accuracy, e.accuracy_error), same ? "  (trained with)" : "");
  }
  return out;
}

std::string experts_table(const EvalReport& r) {
  const auto& by_loop = r.sweep->loops.experts_by_loop;
  const size_t n = by_loop.empty() ? 0 : by_loop.front().share.size();
  if (n == 0) return "";
  std::string out = fmt::format("experts      {}, {} for a token; an even load is {:.2f}%\n", n, r.experts_per_token,
                                100.0 / static_cast<double>(n));
  out += "  in loop    least     most    entropy              never chosen\n";
  for (size_t t = 0; t < by_loop.size(); ++t) {
    const ExpertLoad& load = by_loop[t];
    const auto [least, most] = std::minmax_element(load.share.begin(), load.share.end());
    if (*most == 0) {
      const std::string last = t + 1 < by_loop.size() ? fmt::format(" to {}", by_loop.size()) : "";
      return out + fmt::format("  {:<9}  did not run: every position had halted\n", fmt::format("{}{}", t + 1, last));
    }
    out +=
        fmt::format("  {:<9}  {:5.2f}%   {:5.2f}%   {:<19}  {}\n", t + 1, 100 * *least, 100 * *most,
                    fmt::format("{:.2f} bits ({:.1f}%)", load.entropy(), 100 * load.entropy_fraction()), load.unused());
  }
  return out;
}

}  // namespace

std::string with_error(double value, const std::optional<double>& error, int decimals) {
  return error ? fmt::format("{:.{}f} +- {:.{}f}", value, decimals, *error, decimals)
               : fmt::format("{:.{}f}", value, decimals);
}

std::string checkpoint_text(const EvalReport& r) {
  std::string out = fmt::format("checkpoint   step {}, {} tokens, {} parameters, vocabulary {}\n", with_commas(r.step),
                                with_commas(r.tokens), with_commas(r.parameters), with_commas(r.vocab_size));
  out += fmt::format("rho(A)       max {:.4f}, min {:.4f} ({} {} to {}); channels\n", r.radius.max, r.radius.min,
                     r.radius.within() ? "OK: within" : "NOT within", SpectralRadius::low, SpectralRadius::high);
  const auto most = static_cast<double>(*std::max_element(r.radius.counts.begin(), r.radius.counts.end()));
  for (size_t i = 0; i < r.radius.counts.size(); ++i) {
    out += fmt::format("  {:.4f}-{:.4f}  {:>5}  {}\n", r.radius.edges[i], r.radius.edges[i + 1], r.radius.counts[i],
                       bar(static_cast<double>(r.radius.counts[i]), most));
  }
  return out;
}

std::string sweep_text(const EvalReport& r) {
  const Evaluation& e = r.sweep->trained;
  std::string out = fmt::format(
      "held-out     loss {}, perplexity {}, {} bits per byte, top-1 {}\n"
      "             {} documents, {} tokens, {} bytes{}; {} loops; standard errors by {}\n",
      with_error(e.loss, e.loss_error, 4), with_error(e.perplexity(), e.perplexity_error(), 2),
      with_error(e.bits_per_byte(), e.bits_per_byte_error, 4), share_text(e.accuracy, e.accuracy_error),
      with_commas(e.documents), with_commas(e.tokens), with_commas(e.bytes),
      r.document_separator ? " (2 for each separator)" : "", e.loops, e.by_window ? "window" : "document");
  return out + halting_text(r) + loops_table(r) + experts_table(r);
}

std::string task_text(const ChoiceResult& task) {
  std::string out =
      fmt::format("task         {}: {} questions{}; by chance {:.1f}%\n", task.file, with_commas(task.questions),
                  task.cut > 0 ? fmt::format(" ({} cut at the left)", task.cut) : "", 100 * task.chance);
  out += "  loops      acc              acc_norm         acc_bytes\n";
  const auto line = [&](const ChoiceAccuracy& a) {
    out += fmt::format("  {:<9}  {:<16} {:<16} {}{}\n", a.loops, share_text(a.acc, a.acc_error),
                       share_text(a.acc_norm, a.acc_norm_error), share_text(a.acc_bytes, a.acc_bytes_error),
                       a.loops == task.trained.loops ? "  (trained with)" : "");
  };
  bool has_trained = false;
  for (const auto& a : task.by_loops) {
    has_trained = has_trained || a.loops == task.trained.loops;
    line(a);
  }
  if (!has_trained) line(task.trained);
  return out;
}

std::string adaptive_text(const AdaptiveCheck& c) {
  return fmt::format(
      "adaptive     {:.2f} of {} loops a token: loss {:.4f} instead of {:.4f} ({:+.4f}{}), {:.1f} tokens/s instead of "
      "{:.1f} ({} tokens one by one)\n",
      c.mean_loops, c.loops, c.adaptive_loss, c.loss, c.difference, c.error ? fmt::format(" +- {:.4f}", *c.error) : "",
      c.adaptive_tokens_per_s, c.tokens_per_s, with_commas(c.tokens));
}

std::string sample_text(const EvalReport::Sample& s) { return fmt::format("sample       {}|{}\n", s.prompt, s.text); }

}  // namespace mythos
