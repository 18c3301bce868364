#include "infer/convert.h"
#include "base/error.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"

namespace mythos::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path in, out;
  ConvertOptions convert;
  bool json = false;
};

void run(const Options& o) {
  const Conversion done = convert(o.in, o.out, o.convert);
  Json files = Json::array();
  uint64_t bytes = 0;
  for (const fs::path& file : done.files) {
    files.push_back(file.string());
    bytes += fs::file_size(file);
  }
  const int64_t parameters = parameter_count(done.meta.model);
  if (o.json) {
    return print_json({{"made", done.made},
                       {"step", done.meta.step},
                       {"parameters", parameters},
                       {"optimizer", done.has_optimizer},
                       {"files", files},
                       {"bytes", bytes}});
  }
  std::string text = fmt::format("{}: step {}, {} parameters, {}\n", done.made, with_commas(done.meta.step),
                                 with_commas(parameters), bytes_text(static_cast<double>(bytes)));
  for (const fs::path& file : done.files) text += fmt::format("  {}\n", file.string());
  print(text);
}

}  // namespace

void add_convert(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("convert", "Between PyTorch's .pt, checkpoints, and weights for Python");
  command
      ->add_option("IN", o->in,
                   "a .pt file, a checkpoint, a run's folder, or another program's .safetensors with a config.json "
                   "beside it")
      ->required();
  command
      ->add_option(
          "OUT", o->out,
          "NAME.pt: as the Python reference writes it; NAME.safetensors: from a .pt file a checkpoint with all "
          "it holds, from others the weights; a folder: model.safetensors, config.json and the tokenizer")
      ->required();
  command->add_flag("--weights-only", o->convert.weights_only, "leave the optimizer's state out");
  command->add_flag("--both-heads", o->convert.both_heads,
                    "weights with head.weight and the rotary tables too: all that a strict load_state_dict asks for");
  command->add_option("--tokenizer", o->convert.tokenizer, "the model's tokenizer, if the checkpoint names none")
      ->type_name("FILE");
  command->add_flag("--force", o->convert.force, "replace what is there");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Examples:\n  mythos convert step_0000600.pt step_0000600.safetensors     to go on with train --from\n"
      "  mythos convert runs/mythos_300m out/                        for Python");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
