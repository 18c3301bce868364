#include "plan/inspect.h"
#include "base/error.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "model/flops.h"
#include "train/inspect_run.h"

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string target;
  int64_t vocab = 0, seq_len = 0, loops = 0;
  std::vector<std::string> overrides;
  bool verify = false, json = false;
};

void inspect_preset(const Options& o) {
  ModelConfig model = preset(o.target);
  if (o.vocab != 0) model.vocab_size = o.vocab;
  if (o.vocab < 0 || !problems(model).empty())
    throw usage_error(o.vocab < 0 ? "--vocab must be positive" : problems(model).front());
  const int64_t seq_len = o.seq_len > 0 ? o.seq_len : std::min<int64_t>(2048, model.max_seq_len);
  const std::vector<int64_t> loops{o.loops > 0 ? o.loops : model.max_loop_iters};
  const int64_t bytes = checkpoint_bytes(model);
  if (o.json) return print_json(inspect_model(model, seq_len, loops, bytes));
  print(inspect_model_text(o.target, model, seq_len, loops, bytes));
}

void inspect_configuration(const Options& o) {
  std::vector<std::string> overrides = o.overrides;
  if (o.vocab != 0) overrides.push_back(fmt::format("model.vocab_size={}", o.vocab));
  const RunConfig config = load_config(o.target, overrides);
  const int64_t bytes = checkpoint_bytes(config.model);
  if (o.json) return print_json(inspect_config(config, bytes));
  print(inspect_config_text(o.target, config, bytes));
}

void inspect_file(const Options& o) {
  Json json = describe(o.target);
  if (json.contains("model") && json.contains("config")) {
    const ModelConfig model = model_from_json(json["model"], o.target);
    const auto train = parse_config(json["config"].get<std::string>(), "the checkpoint's config", "run").train;
    json["train_flops_per_token"] = flops_per_token(model, train.seq_len, train.loops).train;
    json["checkpoint_bytes"] = checkpoint_bytes(model);
  }
  if (o.json) return print_json(json);
  std::string text;
  for (const auto& [key, value] : json.items()) {
    if (key == "config") continue;  // long; --json has it
    if (value.is_array()) {
      text += fmt::format("{:<14} {} entries\n", key, value.size());
    } else if (value.is_object()) {
      text += fmt::format("{:<14} {}\n", key, value.dump(-1, ' ', false, Json::error_handler_t::replace));
    } else {
      text += fmt::format("{:<14} {}\n", key,
                          value.is_number_integer() ? with_commas(value.get<int64_t>())
                          : value.is_string()       ? value.get<std::string>()
                                                    : value.dump());
    }
  }
  print(text);
}

void run(const Options& o) {
  std::error_code ec;
  const fs::path path = o.target;
  if (fs::is_directory(path, ec)) {
    const Json json = inspect_run(path, o.verify);
    return o.json ? print_json(json) : print(inspect_run_text(json));
  }
  if (path.extension() == ".toml") return inspect_configuration(o);
  if (fs::exists(path, ec)) return inspect_file(o);
  if (path.has_parent_path() || path.has_extension())
    throw usage_error(fmt::format("there is no {}", o.target), "give a preset, a file or a run's folder");
  inspect_preset(o);
}

}  // namespace

void add_inspect(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("inspect", "What is in a preset, a configuration, a checkpoint or a run");
  command
      ->add_option("TARGET", o->target, "a preset (mythos_300m), a .toml, .safetensors or .pt file, or a run's folder")
      ->required();
  command->add_option("--vocab", o->vocab, "vocabulary size, for presets and configurations");
  command->add_option("--seq-len", o->seq_len, "tokens in a row, for presets");
  command->add_option("--loops", o->loops, "loops, for presets");
  add_overrides(*command, o->overrides, "a configuration");
  command->add_flag("--verify", o->verify, "of a run: read all of its newest checkpoint and check it now");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Example:\n  mythos inspect mythos_300m --vocab 199998 --json\n  mythos inspect runs/mythos_300m     where a "
      "run stands, also while it trains");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
