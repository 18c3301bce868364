#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "checkpoint/meta.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "step/gemm_rate.h"
#include "step/op_speed.h"
#include "train/run_parts.h"

#include <ATen/Parallel.h>
#include <algorithm>

namespace mythos::cli {
namespace {

struct Options {
  std::string preset = "mythos_300m", filter, device = "cpu", dtype = "auto";
  int64_t vocab = 0, seq_len = 0, micro_batch = 1, head_tokens = 256, threads = 0;
  double seconds = 2;
  bool json = false;
};

OpSpeedOptions resolve(const Options& o) {
  OpSpeedOptions s;
  s.model = preset(o.preset);
  if (o.vocab > 0) s.model.vocab_size = o.vocab;
  s.seq_len = o.seq_len > 0 ? o.seq_len : std::min(s.seq_len, s.model.max_seq_len);
  s.micro_batch = o.micro_batch;
  s.head_tokens = o.head_tokens;
  s.seconds = o.seconds;
  s.filter = o.filter;
  s.device = choose_device(o.device);
  s.type = choose_dtype(o.dtype, s.device);
  return s;
}

Json times_json(const OpTimes& t, double rate, double limit) {
  return {{"ms", 1e3 * t.ours},
          {"composite_ms", 1e3 * t.composite},
          {"ratio", t.ratio()},
          {"rate", rate},
          {"fraction_of_limit", rate / limit}};
}

void report_json(const OpSpeedOptions& s, const std::vector<OpSpeed>& speeds) {
  Json ops = Json::array();
  for (const auto& op : speeds) {
    Json json = {{"name", op.name},
                 {"shape", op.shape},
                 {"forward", times_json(op.forward, op.forward_rate(), op.limit)},
                 {"unit", op.by_flops ? "FLOP/s" : "B/s"},
                 {"limit", op.limit}};
    if (op.has_backward) json["forward_backward"] = times_json(op.both, op.both_rate(), op.limit);
    ops.push_back(std::move(json));
  }
  print_json({{"ops", std::move(ops)},
              {"seq_len", s.seq_len},
              {"micro_batch", s.micro_batch},
              {"head_tokens", s.head_tokens},
              {"threads", at::get_num_threads()},
              {"device", device_name(s.device)},
              {"dtype", c10::toString(s.type)},
              {"libtorch", libtorch_version()},
              {"model", model_to_json(s.model)}});
}

std::string line(const char* what, const OpTimes& t, double rate, const OpSpeed& op) {
  return fmt::format("  {:<18} {:>10.3f} {:>12.3f} {:>7.2f}  {:>7}{} {:>6.1f}%\n", what, 1e3 * t.ours,
                     1e3 * t.composite, t.ratio(), si_text(rate), op.by_flops ? "FLOP/s" : "B/s   ",
                     100 * rate / op.limit);
}

void report_text(const OpSpeedOptions& s, const std::vector<OpSpeed>& speeds) {
  std::string text = fmt::format("device  {}, {} threads, LibTorch {}\n", device_name(s.device), at::get_num_threads(),
                                 libtorch_version());
  text += fmt::format("{:<20} {:>10} {:>12} {:>7}  {:>13} {:>7}\n", "", "ours ms", "composite ms", "ratio", "rate",
                      "of limit");
  for (const auto& op : speeds) {
    text += fmt::format("{} ({}; limit {}{})\n", op.name, op.shape, si_text(op.limit), op.by_flops ? "FLOP/s" : "B/s");
    text += line("forward", op.forward, op.forward_rate(), op);
    if (op.has_backward) text += line("forward + backward", op.both, op.both_rate(), op);
  }
  print(text);
}

void run(const Options& o) {
  set_threads(o.threads);
  const OpSpeedOptions s = resolve(o);
  const auto speeds = measure_ops(s, [](const std::string& name) {
    stop_if_asked("stopped");
    log::info("{}", name);
  });
  if (o.json) {
    report_json(s, speeds);
  } else {
    report_text(s, speeds);
  }
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  auto* command = bench.add_subcommand("ops", "How fast each fused op is, against composite operations and the limit");
  command->add_option("--preset", o->preset, "the model whose shapes are used")->capture_default_str();
  const auto number = [&](const char* name, int64_t& value, const char* what) {
    return command->add_option(name, value, what)->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  };
  number("--vocab", o->vocab, "vocabulary size (default: the preset's)");
  number("--seq-len", o->seq_len, "tokens in a row (default: 2048, or what the model has)");
  number("--micro-batch", o->micro_batch, "rows at once")->capture_default_str();
  number("--head-tokens", o->head_tokens, "tokens of the head and loss, whose composite form holds all logits")
      ->capture_default_str();
  number("--threads", o->threads, "threads (default: all this process may use)");
  command->add_option("--seconds", o->seconds, "time for each op, about")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--filter", o->filter, "only ops with this in their names");
  command->add_option("--device", o->device, "cpu, cuda, or auto: a GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  command->add_option("--dtype", o->dtype, "float32, bfloat16, or auto: bfloat16 on a GPU")
      ->check(CLI::IsMember({"float32", "bfloat16", "auto"}))
      ->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos bench ops --preset mythos_300m --vocab 199998 --filter norm");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
