#include "plan/inspect.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/store.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "infer/checkpoint_io.h"
#include "model/flops.h"

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string target;
  int64_t vocab = 0, seq_len = 0, loops = 0;
  std::vector<std::string> overrides;
  bool json = false;
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

// The last line of metrics.jsonl that describes a step.
Json last_metrics(const fs::path& run) {
  Json last;
  std::error_code ec;
  if (!fs::exists(run / "metrics.jsonl", ec)) return last;
  const std::string text = read_file(run / "metrics.jsonl");
  size_t end = text.rfind('\n');
  while (end != std::string::npos) {
    const size_t begin = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    const std::string_view line = std::string_view(text).substr(begin == std::string::npos ? 0 : begin + 1,
                                                                end - (begin == std::string::npos ? 0 : begin + 1));
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("loss")) return json;
    end = begin;
  }
  return last;
}

void inspect_run(const Options& o) {
  const fs::path run = o.target;
  const bool has_config = fs::exists(run / "config.toml");
  const CheckpointStore store(checkpoints_of(run), 1);
  Json json = {{"run", run.string()}, {"checkpoints", Json::array()}};
  for (const int64_t step : store.list()) json["checkpoints"].push_back(step);
  if (!has_config && json["checkpoints"].empty()) {
    throw usage_error(fmt::format("{} is neither a run nor a folder of checkpoints", run.string()),
                      "a run's folder holds config.toml and checkpoints/");
  }
  const auto newest = store.list().empty() ? std::nullopt : store.newest(CheckpointStore::Damaged::leave);
  if (newest) {
    json["newest_verified"] = {{"path", newest->path().string()},
                               {"step", newest->meta.step},
                               {"tokens", newest->meta.tokens},
                               {"created", newest->meta.created}};
    const auto train = parse_config(newest->meta.config, "the checkpoint's config", "run").train;
    json["parameters"] = parameter_count(newest->meta.model);
    json["train_flops_per_token"] = flops_per_token(newest->meta.model, train.seq_len, train.loops).train;
    json["checkpoint_bytes"] = checkpoint_bytes(newest->meta.model);
  }
  const Json last = last_metrics(run);
  if (last.is_object()) json["last_step"] = last;
  if (o.json) return print_json(json);
  std::string text = fmt::format("run          {}\n", run.string());
  if (newest) {
    text += fmt::format("checkpoint   {} (step {}, {} tokens, verified, saved {})\n", newest->path().string(),
                        with_commas(newest->meta.step), with_commas(newest->meta.tokens), newest->meta.created);
    text += fmt::format("model        {} parameters\n", with_commas(parameter_count(newest->meta.model)));
  } else {
    text += "checkpoint   none yet\n";
  }
  if (last.is_object()) {
    text += fmt::format("last step    {}: loss {:.4f}, {} tokens/s\n", last.value("step", int64_t{0}),
                        last.value("loss", 0.0), with_commas(static_cast<int64_t>(last.value("tokens_per_s", 0.0))));
  }
  print(text);
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
  if (fs::is_directory(path, ec)) return inspect_run(o);
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
      ->add_option("TARGET", o->target, "a preset (mythos_300m), a .toml file, a .safetensors file or a run's folder")
      ->required();
  command->add_option("--vocab", o->vocab, "vocabulary size, for presets and configurations");
  command->add_option("--seq-len", o->seq_len, "tokens in a row, for presets");
  command->add_option("--loops", o->loops, "loops, for presets");
  command->add_option("--set", o->overrides, "section.key=VALUE over a configuration; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("KEY=VALUE");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos inspect mythos_300m --vocab 199998 --json");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
