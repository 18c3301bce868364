#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/meta.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "kernels/device.h"
#include "plan/memory.h"
#include "step/gemm_rate.h"
#include "step/speed.h"
#include "train/run_parts.h"

#include <algorithm>

namespace mythos::cli {
namespace {

struct Options {
  std::string config, preset, recompute = "auto", dtype = "auto", device = "cpu", weights, batches;
  std::vector<std::string> overrides;
  int64_t vocab = 0, seq_len = 0, micro_batch = 0, grad_accum = 1, loops = 0, steps = 3, warmup = 1, threads = 0;
  double lr = 0;
  bool json = false, operations = false;
};

TrainSpeedOptions resolve(const Options& o) {
  TrainSpeedOptions t;
  if (!o.config.empty()) {
    std::vector<std::string> overrides = o.overrides;
    if (o.vocab != 0) overrides.push_back(fmt::format("model.vocab_size={}", o.vocab));
    const RunConfig config = load_config(o.config, overrides);
    t.model = config.model;
    t.seq_len = config.train.seq_len;
    t.micro_batch = std::max<int64_t>(1, config.train.micro_batch);
    t.loops = *std::max_element(config.train.loops.begin(), config.train.loops.end());
  } else {
    t.model = preset(o.preset);
    if (o.vocab != 0) t.model.vocab_size = o.vocab;
    t.seq_len = std::min<int64_t>(t.seq_len, t.model.max_seq_len);
  }
  if (o.seq_len > 0) t.seq_len = o.seq_len;
  if (o.micro_batch > 0) t.micro_batch = o.micro_batch;
  if (o.loops > 0) t.loops = o.loops;
  if (const auto wrong = problems(t.model); !wrong.empty()) throw usage_error(wrong.front());
  if (t.seq_len > t.model.max_seq_len) {
    throw usage_error(fmt::format("--seq-len is {}, the model has {} positions", t.seq_len, t.model.max_seq_len));
  }
  t.grad_accum = o.grad_accum;
  t.steps = o.steps;
  t.warmup = o.warmup;
  t.device = choose_device(o.device);
  t.compute = choose_dtype(o.dtype, t.device);
  t.lr = o.lr;
  t.weights = o.weights;
  t.batches = o.batches;
  const int64_t loops = t.loops > 0 ? t.loops : t.model.max_loop_iters;
  t.recompute = o.recompute == "loop"   ? Recompute::loop
                : o.recompute == "none" ? Recompute::none
                                        : least_recompute(t.model, t.micro_batch, t.seq_len, loops,
                                                          t.compute == at::kBFloat16 ? 2 : 4, free_memory(t.device));
  return t;
}

MemoryPlan plan_of(const TrainSpeedOptions& t) {
  return plan_memory(t.model, t.micro_batch, t.seq_len, t.loops > 0 ? t.loops : t.model.max_loop_iters, t.recompute,
                     t.compute == at::kBFloat16 ? 2 : 4);
}

void report_json(const TrainSpeedOptions& t, const TrainSpeed& s, const Options& o) {
  const MemoryPlan plan = plan_of(t);
  Json parts = Json::object();
  Json limits = Json::object();
  for (size_t i = 0; i < part_names.size(); ++i) {
    parts[part_names[i]] = s.parts.seconds[i];
    if (s.gemm_by_part[i] > 0) limits[part_names[i]] = s.gemm_by_part[i];
  }
  Json json = {{"tokens_per_s", s.tokens_per_second()},
               {"peak_rss_bytes", s.peak_resident_bytes},
               {"peak_tensor_bytes", s.peak_tensor_bytes},
               {"predicted_tensor_bytes", plan.total() - plan.program},
               {"gemm_flops_per_s", s.gemm_flops_per_s},
               {"gemm_limit_tokens_per_s", s.limit_tokens_per_second()},
               {"fraction_of_limit", s.fraction_of_limit()},
               {"parts_s", std::move(parts)},
               {"parts_step_s", s.profiled_seconds},
               {"gemm_flops_per_s_by_part", std::move(limits)},
               {"step_seconds", s.step_seconds},
               {"gemm_rounds_flops_per_s", s.gemm_rates},
               {"losses", s.losses},
               {"tokens_per_step", s.tokens_per_step},
               {"train_flops_per_token", s.train_flops_per_token},
               {"seq_len", t.seq_len},
               {"micro_batch", t.micro_batch},
               {"grad_accum", t.grad_accum},
               {"loops", t.loops > 0 ? t.loops : t.model.max_loop_iters},
               {"loops_run", s.loops_run},
               {"lr", t.lr},
               {"recompute", t.recompute == Recompute::loop ? "loop" : "none"},
               {"threads", at::get_num_threads()},
               {"device", device_name(t.device)},
               {"libtorch", libtorch_version()},
               {"cuda_graphs", s.graphs},
               {"model", model_to_json(t.model)}};
  if (o.operations) {
    json["operations_s"] = Json::object();
    for (const auto& [name, seconds] : s.parts.operations) json["operations_s"][name] = seconds;
  }
  print_json(json);
}

void report_text(const TrainSpeedOptions& t, const TrainSpeed& s, const Options& o) {
  std::string text = fmt::format("device       {}, {} threads, LibTorch {}\n", device_name(t.device),
                                 at::get_num_threads(), libtorch_version());
  text += fmt::format("step         {} tokens (micro_batch {} x seq_len {} x grad_accum {}), recompute {}\n",
                      with_commas(s.tokens_per_step), t.micro_batch, t.seq_len, t.grad_accum,
                      t.recompute == Recompute::loop ? "loop" : "none");
  text += fmt::format("loops        {:.1f} of {} run on average\n", s.loops_run,
                      t.loops > 0 ? t.loops : t.model.max_loop_iters);
  text += fmt::format("speed        {:.1f} tokens/s ({:.2f} s a step, median of {})\n", s.tokens_per_second(),
                      static_cast<double>(s.tokens_per_step) / s.tokens_per_second(), s.step_seconds.size());
  text += fmt::format("limit        {:.1f} tokens/s: {}FLOP/s in this model's matrix shapes, {}FLOP per token\n",
                      s.limit_tokens_per_second(), si_text(s.gemm_flops_per_s), si_text(s.train_flops_per_token));
  text += fmt::format("fraction     {:.3f} of the limit\n", s.fraction_of_limit());
  if (!t.device.is_cpu()) {
    text += s.graphs > 0 ? fmt::format("graphs       each micro-step is a CUDA graph\n")
                         : fmt::format("graphs       none: {}\n", s.why_no_graph);
  }
  const MemoryPlan plan = plan_of(t);
  text += fmt::format("memory       {} at most (resident); tensors {}, predicted {}\n",
                      bytes_text(static_cast<double>(s.peak_resident_bytes)),
                      bytes_text(static_cast<double>(s.peak_tensor_bytes)),
                      bytes_text(static_cast<double>(plan.total() - plan.program)));
  text += fmt::format("one step by part, {:.2f} s\n", s.profiled_seconds);
  for (size_t i = 0; i < part_names.size(); ++i) {
    text += fmt::format("  {:<12} {:>9.3f} s {:>5.1f}%", part_names[i], s.parts.seconds[i],
                        100 * s.parts.seconds[i] / s.profiled_seconds);
    if (s.gemm_by_part[i] > 0) text += fmt::format("   its products at best {}FLOP/s", si_text(s.gemm_by_part[i]));
    text += "\n";
  }
  if (o.operations) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [name, seconds] : s.parts.operations) sorted.emplace_back(seconds, name);
    std::sort(sorted.rbegin(), sorted.rend());
    text += "by operation, without what it calls\n";
    for (const auto& [seconds, name] : sorted) {
      if (seconds >= 0.001 * s.profiled_seconds) text += fmt::format("  {:>9.3f} s  {}\n", seconds, name);
    }
  }
  print(text);
}

void run(const Options& o) {
  set_threads(o.threads);
  const TrainSpeedOptions t = resolve(o);
  const TrainSpeed s = measure_training(t, [](const std::string& what) {
    stop_if_asked("stopped");
    log::info("{}", what);
  });
  if (o.json) {
    report_json(t, s, o);
  } else {
    report_text(t, s, o);
  }
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  auto* command = bench.add_subcommand("train", "How fast a model trains, against the matrix-multiply rate");
  auto* config = command->add_option("CONFIG", o->config, "a run's configuration: model, seq_len and micro_batch");
  command->add_option("--preset", o->preset, "a preset instead (mythos_300m)")->excludes(config);
  add_overrides(*command, o->overrides);
  const auto number = [&](const char* name, int64_t& value, const char* what, int64_t least) {
    command->add_option(name, value, what)->check(CLI::Range(least, int64_t{1} << 40));
  };
  number("--vocab", o->vocab, "vocabulary size", 1);
  number("--seq-len", o->seq_len, "tokens in a row", 1);
  number("--micro-batch", o->micro_batch, "rows at once", 1);
  number("--grad-accum", o->grad_accum, "micro-batches a step", 1);
  number("--loops", o->loops, "loops of the recurrent block", 1);
  number("--steps", o->steps, "steps to count", 1);
  number("--warmup", o->warmup, "steps before them", 0);
  number("--threads", o->threads, "threads (default: all this process may use)", 1);
  command->add_option("--recompute", o->recompute, "none, loop, or auto: none where it fits the memory")
      ->check(CLI::IsMember({"none", "loop", "auto"}))
      ->capture_default_str();
  command->add_option("--lr", o->lr, "learning rate; 0: the weights stay, and every step does the same work")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda, or auto: a GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  command->add_option("--dtype", o->dtype, "float32, bfloat16, or auto: bfloat16 on a GPU")
      ->check(CLI::IsMember({"float32", "bfloat16", "auto"}))
      ->capture_default_str();
  command->add_option("--weights", o->weights, "a safetensors file of fp32 weights by the reference's names");
  command->add_option("--batches", o->batches, "a safetensors file with int64 input_ids and targets [steps, rows, T]");
  command->add_flag("--operations", o->operations, "also the time by operation");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos bench train --preset mythos_300m --vocab 199998 --seq-len 2048 --micro-batch 1");
  command->callback([o] {
    if (o->config.empty() && o->preset.empty()) {
      throw usage_error("there is no model to train", "name a preset with --preset, or give a configuration");
    }
    run(*o);
  });
}

}  // namespace mythos::cli
