#include "infer/eval_report.h"

namespace mythos {
namespace {

Json experts_of_loop(int64_t loop, const ExpertLoad& load) {
  Json json = {{"loop", loop}};
  json.update(experts_json(load));
  json["entropy_bits"] = load.entropy();
  json["entropy_fraction"] = load.entropy_fraction();
  return json;
}

// What is said of the text, not of the training.
std::string key_of(const std::string& key) {
  return key == "tokens" || key == "documents" || key == "bytes" ? "evaluated_" + key : key;
}

void add_sweep(const LoopSweep& sweep, Json& json) {
  const Json figures = to_json(sweep.trained);
  for (const auto& [key, value] : figures.items()) {
    if (!key.starts_with("loss_difference")) json[key_of(key)] = value;
  }
  for (const Evaluation& e : sweep.by_loops) json["by_loops"].push_back(to_json(e));
  Json experts = Json::array();
  for (const auto& load : sweep.loops.experts_by_loop) {
    experts.push_back(experts_of_loop(static_cast<int64_t>(experts.size()) + 1, load));
  }
  json["experts_by_loop"] = std::move(experts);
  json["experts"] = experts_json(sweep.loops.experts);
  Json halting = {{"loops", sweep.loops.halted_by_loop.size()}};
  halting.update(halting_json(sweep.loops));
  halting["halts_in_loop"] = sweep.loops.halts_in_loop();
  halting["never_halted"] = sweep.loops.never_halted();
  json["halting"] = std::move(halting);
}

}  // namespace

Json to_json(const EvalReport& r) {
  Json json = {{"checkpoint", r.checkpoint},
               {"step", r.step},
               {"tokens", r.tokens},
               {"parameters", r.parameters},
               {"vocab_size", r.vocab_size},
               {"spectral_radius_max", r.radius.max},
               {"spectral_radius_min", r.radius.min},
               {"spectral_radius_ok", r.radius.within()},
               {"spectral_radius_histogram", histogram_json(r.radius)},
               {"loss", nullptr},
               {"perplexity", nullptr},
               {"bits_per_byte", nullptr},
               {"by_loops", Json::array()}};
  if (r.sweep) add_sweep(*r.sweep, json);
  if (!r.tasks.empty()) {
    json["tasks"] = Json::array();
    for (const auto& task : r.tasks) json["tasks"].push_back(to_json(task));
  }
  if (r.adaptive) json["adaptive"] = to_json(*r.adaptive);
  if (!r.samples.empty()) {
    json["samples"] = Json::array();
    for (const auto& s : r.samples) json["samples"].push_back({{"prompt", s.prompt}, {"text", s.text}});
  }
  return json;
}

}  // namespace mythos
