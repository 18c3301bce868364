// What many GPUs come to, for people and for programs.
#include "base/units.h"
#include "plan/by_gpus.h"

#include <fmt/ranges.h>

#include <cmath>

namespace mythos {
namespace {

double real(int64_t n) { return static_cast<double>(n); }
std::string shown(int64_t bytes) { return bytes == 0 ? "-" : bytes_text(real(bytes)); }
std::string rate(double bytes_per_second) {
  return bytes_per_second > 0 ? bytes_text(bytes_per_second) + "/s" : "not known";
}
std::string seconds_text(double s) {
  return s < 1e-3  ? fmt::format("{:.3g} us", 1e6 * s)
         : s < 1   ? fmt::format("{:.3g} ms", 1e3 * s)
         : s < 1e4 ? fmt::format("{:.{}f} s", s,
                                 s < 9.995   ? 2
                                 : s < 99.95 ? 1
                                             : 0)
                   : duration_text(s);
}
std::string seconds_text(const std::optional<double>& s) { return s ? seconds_text(*s) : "unknown"; }
std::string billions(int64_t n) {
  return n < 1'000'000'000 ? fmt::format("{:.3g} million", real(n) / 1e6)
                           : fmt::format("{:.3g} billion", real(n) / 1e9);
}
std::string gpus_text(int64_t n) { return fmt::format("{} GPU{}", with_commas(n), n == 1 ? "" : "s"); }
std::string percent(const std::optional<double>& x) { return x ? fmt::format("{:.0f}%", 100 * *x) : "unknown"; }
std::string hours_text(double hours) {
  return hours < 1 ? duration_text(hours * 3600)
                   : fmt::format("{} h", hours < 100 ? fmt::format("{:.1f}", hours) : with_commas(std::llround(hours)));
}

std::string run_table(const ByGpus& p) {
  std::string t =
      fmt::format("  {:>6} {:>8} {:>13} {:>10} {:>9} {:>10} {:>12} {:>8} {:>9} {:>11}\n", "GPUs", "machines",
                  "tokens a step", "grad_accum", "steps", "a step", "tokens/s", "of N x 1", "time", "cost");
  for (const GpuRow& r : p.rows) {
    t += fmt::format("  {:>6} {:>8} {:>13} {:>10} {:>9}", r.gpus, r.machines, with_commas(r.batch.global_batch_tokens),
                     r.batch.grad_accum, r.batch.steps > 0 ? with_commas(r.batch.steps) : "-");
    if (!r.possible()) {
      t += r.refused.empty() ? " does not fit\n" : " is refused\n";
      continue;
    }
    t += fmt::format(" {:>10} {:>12} {:>8} {:>9} {:>11}\n", seconds_text(r.step_seconds),
                     r.tokens_per_second ? with_commas(std::llround(*r.tokens_per_second)) : "unknown",
                     percent(r.efficiency),
                     r.hours              ? hours_text(*r.hours)
                     : r.batch.steps == 0 ? "-"
                                          : "unknown",
                     r.cost                ? fmt::format("${}", with_commas(std::llround(*r.cost)))
                     : p.request.price > 0 ? "unknown"
                                           : "-");
  }
  return t;
}

std::string traffic_table(const ByGpus& p) {
  std::string t = fmt::format("  {:>6} {:>12} {:>10} {:>12} {:>14} {:>12} {:>14} {:>10}\n", "GPUs", "a micro-step",
                              "computing", "and gathers", "a step gathers", "and reduces", "traffic alone", "hidden");
  for (const GpuRow& r : p.rows) {
    if (r.gpus == 1) continue;
    t += fmt::format("  {:>6} {:>12} {:>10} {:>12} {:>14} {:>12} {:>14} {:>10}\n", r.gpus,
                     seconds_text(r.micro_step_seconds), seconds_text(r.compute_seconds),
                     shown(r.micro_step_gather_bytes), shown(r.step_gather_bytes), shown(r.step_reduce_bytes),
                     seconds_text(r.step_traffic_seconds), percent(r.hidden));
  }
  return t;
}

std::string memory_table(const ByGpus& p) {
  std::string t =
      fmt::format("  {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11} {:>9} {:>9} {:>9}\n", "GPUs", "fp32", "copies",
                  "gradients", "moments", "gathered", "their grads", "activations", "logits", "program", "together");
  bool tight = false;
  for (const GpuRow& r : p.rows) {
    const RankMemory& m = r.memory;
    t += fmt::format("  {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11} {:>9} {:>9} {:>9}{}\n", r.gpus,
                     shown(m.master), shown(m.copies), shown(m.gradients), shown(m.moments), shown(m.gathered),
                     shown(m.whole_gradients), shown(m.activations), shown(m.loss_chunk), shown(m.program),
                     shown(m.total()),
                     !r.fits                     ? "  x"
                     : r.tight(p.request.memory) ? "  tight"
                                                 : "");
    tight = tight || (r.fits && r.tight(p.request.memory));
  }
  if (tight) t += "  tight: less than 15% to spare\n";
  return t;
}

std::string limit_text(const ByGpus& p) {
  const DesignLimit& l = p.limit;
  const ByGpusRequest& r = p.request;
  std::string t = fmt::format(
      "  where it stops: the largest unit, \"{}\", has {} parameters: {} gathered, {} with its gradients, of {} on a "
      "card, which holds one of {} at most: it {}\n",
      l.unit, billions(l.unit_parameters), bytes_text(real(l.gathered_bytes)), bytes_text(real(l.in_use_bytes)),
      bytes_text(real(r.memory)), billions(l.largest_parameters),
      l.fits ? "fits" : "does not fit, however many GPUs there are");
  if (l.gpus == 1) return t;
  t += fmt::format(
      "  {}experts would have to stay where they are and tokens travel: on {} a token sends {} ({} experts x {} "
      "values, there and back, in both passes, each loop)",
      l.fits ? "beyond that " : "", gpus_text(l.gpus), bytes_text(l.token_bytes), r.config.model.n_experts_per_tok,
      with_commas(r.config.model.dim));
  if (l.token_traffic_seconds) {
    t += fmt::format(", {} at {}/s a GPU: {:.2g}% of the {} that it computes", seconds_text(*l.token_traffic_seconds),
                     bytes_text(*l.token_rate), 100 * *l.token_traffic_seconds / l.token_compute_seconds,
                     seconds_text(l.token_compute_seconds));
  }
  return t + "\n";
}

Json known(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }
Json known(double x) { return x > 0 ? Json(x) : Json(nullptr); }

Json row_json(const GpuRow& r) {
  const RankMemory& m = r.memory;
  const bool possible = r.possible();
  const auto if_possible = [&](const std::optional<double>& x) { return possible ? known(x) : Json(nullptr); };
  return {{"gpus", r.gpus},
          {"machines", r.machines},
          {"ranks", r.gpus},
          {"ranks_that_share", r.group},
          {"micro_batch", r.batch.micro_batch},
          {"grad_accum", r.batch.grad_accum},
          {"global_batch_tokens", r.batch.global_batch_tokens},
          {"steps", r.batch.steps > 0 ? Json(r.batch.steps) : Json(nullptr)},
          {"memory_bytes", m.total()},
          {"memory",
           {{"master_bytes", m.master},
            {"copies_bytes", m.copies},
            {"gradients_bytes", m.gradients},
            {"moments_bytes", m.moments},
            {"gathered_bytes", m.gathered},
            {"whole_gradients_bytes", m.whole_gradients},
            {"activations_bytes", m.activations},
            {"logits_bytes", m.loss_chunk},
            {"program_bytes", m.program}}},
          {"memory_fits", r.fits},
          {"does_not_fit", r.fits ? Json(nullptr) : Json(r.why_not)},
          {"refused", r.refused.empty() ? Json(nullptr) : Json(r.refused)},
          {"micro_step_compute_s", r.compute_seconds},
          {"micro_step_gather_bytes", r.micro_step_gather_bytes},
          {"micro_step_s", known(r.micro_step_seconds)},
          {"step_gather_bytes", r.step_gather_bytes},
          {"step_reduce_bytes", r.step_reduce_bytes},
          {"step_traffic_s", known(r.step_traffic_seconds)},
          {"hidden_fraction", known(r.hidden)},
          {"step_s", known(r.step_seconds)},
          {"tokens_per_s", if_possible(r.tokens_per_second)},
          {"scaling_efficiency", if_possible(r.efficiency)},
          {"hours", if_possible(r.hours)},
          {"cost_usd", if_possible(r.cost)},
          {"data_lanes_needed", r.needs_lanes},
          {"notes", r.notes}};
}

}  // namespace

std::string by_gpus_text(const ByGpus& p) {
  const ByGpusRequest& r = p.request;
  std::string t =
      fmt::format("on many GPUs  {}, {} to a machine; from GPU to GPU of one {}, from machine to machine {}\n", p.gpu,
                  r.interconnect.gpus_per_machine, rate(r.interconnect.link), rate(r.interconnect.network));
  t += fmt::format(
      "  train.sharding \"{}\"{}, micro_batch {}, recompute {}; a GPU by itself {} tokens/s\n", r.config.train.sharding,
      r.config.train.reduce_gradients == "micro_step" ? ", gradients move after every micro-step" : "", r.micro_batch,
      r.recompute == Recompute::loop ? "on" : "off", with_commas(std::llround(r.tokens_per_second)));
  t += fmt::format("  computing: {}\n", r.speed_source);
  t += "  traffic: the catalogue's full rates in one direction, rings, no latency; times are the least there can be\n";
  t += run_table(p);
  for (const GpuRow& row : p.rows) {
    for (const std::string& note : row.notes) t += fmt::format("  {}: {}\n", gpus_text(row.gpus), note);
    if (!row.refused.empty()) t += fmt::format("  {}: {}\n", gpus_text(row.gpus), row.refused);
  }
  int64_t lanes = 0;
  for (const GpuRow& row : p.rows) lanes = std::max(lanes, row.needs_lanes ? row.gpus * r.config.data.workers : 0);
  if (lanes > 0) {
    t += fmt::format("  data.lanes is {}: {} GPUs with {} each need {}, which is another order of the data\n",
                     r.config.data.lanes, with_commas(lanes / r.config.data.workers),
                     r.config.data.workers == 1 ? "a worker" : fmt::format("{} workers", r.config.data.workers),
                     with_commas(lanes));
  }
  if (!p.missing.empty()) {
    t += fmt::format("  not known: {}\n", fmt::join(p.missing, "; "));
  }
  if (r.price > 0) t += fmt::format("  cost at ${:g}/h for a {}\n", r.price, r.price_of_machine ? "machine" : "GPU");
  if (p.rows.size() > 1 || p.rows.front().gpus > 1) t += "  what each rank sends, and when\n" + traffic_table(p);
  t += fmt::format("  memory of a GPU, at its most, of {}\n{}", bytes_text(real(r.memory)), memory_table(p));
  for (const GpuRow& row : p.rows) {
    if (!row.fits) t += fmt::format("  x {}: {}\n", gpus_text(row.gpus), row.why_not);
  }
  return t + limit_text(p);
}

void add_to_json(Json& json, const ByGpus& p) {
  const ByGpusRequest& r = p.request;
  const DesignLimit& l = p.limit;
  json["by_gpus"] = Json::array();
  for (const GpuRow& row : p.rows) json["by_gpus"].push_back(row_json(row));
  json["by_gpus_basis"] = {{"gpu", p.gpu},
                           {"memory_limit_bytes", r.memory},
                           {"gpus_per_machine", r.interconnect.gpus_per_machine},
                           {"link_bytes_per_s", known(r.interconnect.link)},
                           {"network_bytes_per_s", known(r.interconnect.network)},
                           {"not_known", p.missing},
                           {"sharding", r.config.train.sharding},
                           {"one_gpu_tokens_per_s", r.tokens_per_second},
                           {"speed_source", r.speed_source},
                           {"price_per_hour", known(r.price)},
                           {"price_of", r.price_of_machine ? "machine" : "gpu"}};
  json["by_gpus_limit"] = {{"largest_unit", l.unit},
                           {"largest_unit_parameters", l.unit_parameters},
                           {"largest_unit_gathered_bytes", l.gathered_bytes},
                           {"largest_unit_in_use_bytes", l.in_use_bytes},
                           {"most_parameters_of_a_unit", l.largest_parameters},
                           {"fits", l.fits},
                           {"expert_parallel_gpus", l.gpus},
                           {"expert_parallel_bytes_per_token", l.token_bytes},
                           {"expert_parallel_s_per_token", known(l.token_traffic_seconds)},
                           {"compute_s_per_token", l.token_compute_seconds}};
}

}  // namespace mythos
