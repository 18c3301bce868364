// A plan for people and for programs.
#include "base/units.h"
#include "plan/inspect.h"
#include "plan/run_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace mythos {
namespace {

std::string shown(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
std::string hours_text(double hours) {
  return hours < 1      ? duration_text(hours * 3600)
         : hours < 1000 ? fmt::format("{:.3g} h", hours)
                        : fmt::format("{} h", with_commas(std::llround(hours)));
}
std::string whole_hours(double hours) { return hours >= 10 ? fmt::format("{:.0f} h", hours) : hours_text(hours); }
std::string money(double dollars) {
  return dollars >= 10 ? fmt::format("${:.0f}", dollars) : fmt::format("${:.2f}", dollars);
}
std::string rate_text(double tokens_per_second) {
  return tokens_per_second >= 100 ? with_commas(std::llround(tokens_per_second))
                                  : fmt::format("{:.1f}", tokens_per_second);
}

std::string line(const char* what, const std::string& text) { return fmt::format("{:<13} {}\n", what, text); }

std::string parameters_text(const RunPlan& p) {
  const ParametersByPart& n = p.parameters;
  const FlopsPerToken& f = p.flops;
  std::string t =
      line("parameters", fmt::format("{}: embedding {}, prelude {}, loop {} (attention {}, routed experts {}, shared "
                                     "{}, other {}), coda {}, norm {}",
                                     with_commas(n.total()), with_commas(n.embedding), with_commas(n.prelude),
                                     with_commas(n.recurrent()), with_commas(n.recurrent_attention),
                                     with_commas(n.recurrent_routed), with_commas(n.recurrent_shared),
                                     with_commas(n.recurrent_other), with_commas(n.coda), with_commas(n.final_norm)));
  t += line("FLOPs", fmt::format("{}FLOP a token to train; forward: head {}, dense blocks {}, loops {}, attention {}",
                                 si_text(f.train), si_text(f.head), si_text(f.dense_blocks), si_text(f.loops),
                                 si_text(f.attention)));
  return t;
}

std::string memory_table(const RunPlan& p) {
  std::string t = fmt::format("{:<13} {:>11} {:>14} {:>14}   of {}\n", "memory", "micro_batch", "no recompute",
                              "recompute", shown(p.memory_limit));
  for (size_t i = 0; i + 1 < p.rows.size(); i += 2) {
    const auto cell = [](const MemoryRow& row) { return shown(row.bytes) + (row.fits ? "   " : " x "); };
    t += fmt::format("  {:<11} {:>11} {:>14} {:>14}\n", p.rows[i].micro_batch == p.batch.micro_batch ? "chosen" : "",
                     p.rows[i].micro_batch, cell(p.rows[i]), cell(p.rows[i + 1]));
  }
  t += "  x: more than 85% of what is there\n";
  const MemoryPlan& m = p.memory;
  t += line("at its peak",
            fmt::format("{}: weights {}, gradients {}, moments {}, activations {}, logits {}, program {}{}",
                        shown(p.memory_bytes), shown(m.weights), shown(m.gradients), shown(m.moments),
                        shown(m.activations), shown(m.loss_chunk), shown(m.program),
                        m.snapshot > 0 ? fmt::format(", copy to write checkpoints from {}", shown(m.snapshot)) : ""));
  if (p.measured_tensors > 0) {
    t += line("", fmt::format("tensors took {} as measured, {} were predicted", shown(p.measured_tensors),
                              shown(m.total() - m.program - m.snapshot)));
  }
  t += line("caches", fmt::format("{} for a whole row while generating", shown(p.cache_bytes)));
  return t;
}

std::string choices_text(const RunPlan& p) {
  std::string t =
      fmt::format("machines      {:<15} {:<10} {:>5} {:>9} {:>9} {:>9}\n", "", "GPU", "vCPUs", "$/h", "hours", "cost");
  std::vector<double> hours;
  for (const Choice& c : p.choices) hours.push_back(c.hours);
  const double fastest = hours.empty() ? 0 : *std::min_element(hours.begin(), hours.end());
  const double mfu = p.measured ? 0 : p.expected.mfu;
  for (const Choice& c : p.choices) {
    std::string remark = c.fits ? "" : "  does not fit";
    if (c.instance.gpus > 1) remark += fmt::format("  1 of {} GPUs used", c.instance.gpus);
    if (c.hours == fastest) remark += "  fastest";
    t += fmt::format("              {:<15} {:<10} {:>5} {:>9} {:>9} {:>9}{}\n", c.instance.name, c.instance.gpu,
                     c.instance.vcpus, fmt::format("{:.2f}", c.price), fmt::format("{:.1f}", c.hours), money(c.cost),
                     remark);
  }
  if (mfu > 0) t += fmt::format("  all at {:.1f}% of their GPU's peak, by cost\n", 100 * mfu);
  return t;
}

Json pace_json(const Pace& p, bool length, bool price) {
  return {{"tokens_per_s", p.tokens_per_second},
          {"mfu", p.mfu},
          {"hours", length ? Json(p.hours) : Json(nullptr)},
          {"cost_usd", length && price ? Json(p.cost) : Json(nullptr)}};
}

}  // namespace

std::string plan_text(const RunPlan& p) {
  const bool length = p.batch.steps > 0;
  std::string t =
      fmt::format("{} on {}{}\n", p.title, p.target, p.measured ? ", measured" : ", estimated (nothing was measured)");
  t += parameters_text(p);
  t += memory_table(p);
  t += line("batch",
            fmt::format("micro_batch {} x grad_accum {} = {} tokens a step; {}", p.batch.micro_batch,
                        p.batch.grad_accum, with_commas(p.batch.global_batch_tokens),
                        length ? fmt::format("{} steps, {}tokens, {}FLOP", with_commas(p.batch.steps),
                                             si_text(static_cast<double>(p.batch.tokens())), si_text(p.total_flops()))
                               : "no length is given: train.target_tokens or train.steps"));
  t += line("", p.batch_why);
  if (p.peak > 0) {
    t += line("speed", fmt::format("{} tokens/s, {:.1f}% MFU of {}", rate_text(p.expected.tokens_per_second),
                                   100 * p.expected.mfu, p.peak_source));
    t += line("", p.speed_source);
    if (length) {
      t += line("time", fmt::format("{} ({} to {})", whole_hours(p.expected.hours), whole_hours(p.fast.hours),
                                    whole_hours(p.slow.hours)));
      t += line("cost", p.price > 0 ? fmt::format("{} ({} to {}) at ${:g}/h, {}", money(p.expected.cost),
                                                  money(p.fast.cost), money(p.slow.cost), p.price, p.price_source)
                                    : "no price: --price-per-hour, cost.price_per_hour or --instance");
    }
  }
  if (p.reference && length) {
    t += line("pessimistic",
              fmt::format("at the {:.1f}% MFU of the Python reference: {} tokens/s, {} of stepping{}",
                          100 * p.reference->mfu, rate_text(p.reference->tokens_per_second),
                          whole_hours(p.reference->hours), p.price > 0 ? ", " + money(p.reference->cost) : ""));
    t += line("",
              "a calendar shows more than the stepping: that run's 153 h became 161 h by a start with smaller batches, "
              "3 h of standing still");
    t += line("", "after a full disk, and 200 steps done twice from the last checkpoint");
    const double half_day = p.total_flops() / (12 * 3600 * p.peak);
    if (half_day <= 1) t += line("", fmt::format("12 h become true at {:.0f}% MFU", 100 * half_day));
  }
  t += line("disk", fmt::format("{} for {} checkpoints of {} ({} bytes) at once{}", shown(p.disk_needed),
                                p.checkpoints_at_once, shown(p.checkpoint_bytes), with_commas(p.disk_needed),
                                p.disk_free ? fmt::format("; {} free", shown(*p.disk_free)) : ""));
  if (p.network_bytes > 0) t += line("network", fmt::format("about {} to stream", bytes_text(p.network_bytes)));
  for (const std::string& note : p.notes) t += line("note", note);
  for (const std::string& verdict : p.verdicts) t += line("verdict", verdict);
  if (!p.changes.empty()) {
    t += "what would change it most\n";
    for (const Change& c : p.changes) t += fmt::format("  {}\n", c.text);
  }
  if (!p.choices.empty()) t += choices_text(p);
  if (p.quota) t += quota_text(*p.quota, p.use);
  if (p.by_gpus) t += by_gpus_text(*p.by_gpus);
  return t;
}

Json to_json(const RunPlan& p) {
  const bool length = p.batch.steps > 0;
  const bool speed = p.peak > 0;
  const bool price = p.price > 0;
  const ParametersByPart& n = p.parameters;
  const FlopsPerToken& f = p.flops;
  const MemoryPlan& m = p.memory;
  Json rows = Json::array();
  for (const MemoryRow& row : p.rows) {
    rows.push_back({{"micro_batch", row.micro_batch},
                    {"recompute", row.recompute == Recompute::loop ? "loop" : "none"},
                    {"bytes", row.bytes},
                    {"fits", row.fits}});
  }
  Json changes = Json::array();
  for (const Change& c : p.changes) changes.push_back({{"change", c.text}, {"saves", c.gain}});
  Json out = {{"target", p.target},
              {"measured", p.measured},
              {"parameters", n.total()},
              {"parameters_by_part", to_json(n)},
              {"train_flops_per_token", f.train},
              {"flops_per_token", to_json(f)},
              {"micro_batch", p.batch.micro_batch},
              {"grad_accum", p.batch.grad_accum},
              {"global_batch_tokens", p.batch.global_batch_tokens},
              {"steps", length ? Json(p.batch.steps) : Json(nullptr)},
              {"tokens", length ? Json(p.batch.tokens()) : Json(nullptr)},
              {"recompute", p.recompute == Recompute::loop ? "loop" : "none"},
              {"batch_reason", p.batch_why},
              {"tokens_per_s", speed ? Json(p.expected.tokens_per_second) : Json(nullptr)},
              {"mfu", speed ? Json(p.expected.mfu) : Json(nullptr)},
              {"mfu_of", p.peak_source},
              {"peak_flops_per_s", p.peak},
              {"speed_source", p.speed_source},
              {"hours", speed && length ? Json(p.expected.hours) : Json(nullptr)},
              {"cost_usd", speed && length && price ? Json(p.expected.cost) : Json(nullptr)},
              {"price_per_hour", price ? Json(p.price) : Json(nullptr)},
              {"price_source", p.price_source},
              {"checkpoint_bytes", p.checkpoint_bytes},
              {"checkpoints_at_once", p.checkpoints_at_once},
              {"disk_needed_bytes", p.disk_needed},
              {"disk_free_bytes", p.disk_free ? Json(*p.disk_free) : Json(nullptr)},
              {"network_bytes", p.network_bytes},
              {"memory_bytes", p.memory_bytes},
              {"memory_limit_bytes", p.memory_limit},
              {"memory_fits", p.fits},
              {"memory",
               {{"weights", m.weights},
                {"gradients", m.gradients},
                {"moments", m.moments},
                {"activations", m.activations},
                {"logits", m.loss_chunk},
                {"program", m.program},
                {"snapshot", m.snapshot},
                {"measured_tensors", p.measured_tensors > 0 ? Json(p.measured_tensors) : Json(nullptr)},
                {"cache_while_generating", p.cache_bytes}}},
              {"memory_by_micro_batch", std::move(rows)},
              {"changes", std::move(changes)},
              {"notes", p.notes},
              {"quota", p.quota ? to_json(*p.quota, p.use) : Json(nullptr)}};
  if (speed) {
    out["fast"] = pace_json(p.fast, length, price);
    out["slow"] = pace_json(p.slow, length, price);
  }
  if (p.reference) {
    out["pessimistic"] = pace_json(*p.reference, length, price);
    if (length) out["mfu_for_12_hours"] = p.total_flops() / (12 * 3600 * p.peak);
  }
  for (const auto& [name, value] : p.targets.items()) out[name] = value;
  if (!p.choices.empty()) {
    out["compare"] = Json::array();
    for (const Choice& c : p.choices) {
      out["compare"].push_back({{"instance", c.instance.name},
                                {"gpu", c.instance.gpu},
                                {"gpus", c.instance.gpus},
                                {"vcpus", c.instance.vcpus},
                                {"price_per_hour", c.price},
                                {"hours", c.hours},
                                {"cost_usd", c.cost},
                                {"fits", c.fits}});
    }
  }
  if (p.by_gpus) add_to_json(out, *p.by_gpus);
  return out;
}

}  // namespace mythos
