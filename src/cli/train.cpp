#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "train/trainer.h"

namespace mythos::cli {

void add_train(CLI::App& app, Result& result) {
  auto request = std::make_shared<TrainRequest>();
  auto* command = app.add_subcommand("train", "Train a model; goes on by itself where the run stopped");
  command->add_option("CONFIG", request->config, "configuration file (docs/config.md lists its keys)")->required();
  command->add_option("--set", request->overrides, "section.key=VALUE over the configuration; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("KEY=VALUE");
  command
      ->add_option_function<int64_t>(
          "--steps",
          [request](const int64_t& n) {
            if (n < 1) throw usage_error(fmt::format("--steps is {}, it must be at least 1", n));
            request->steps = n;
          },
          "make the run this many steps long")
      ->type_name("N");
  command->add_flag("--fresh", request->fresh,
                    "set an existing run aside (it is renamed, never deleted) and begin anew");
  command->add_flag("--force", request->force,
                    "go on where the program would refuse (other settings, little disk or memory)");
  command
      ->add_option("--from", request->from,
                   "begin from this checkpoint, a .pt file of the Python reference, or a run's newest")
      ->type_name("CHECKPOINT");
  command->add_flag("--weights-only", request->weights_only, "with --from: take its weights, begin at step 0");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON document on standard output when it ends");
  command->footer("Example:\n  mythos train configs/demo.toml --set train.lr=1e-3 --steps 200");
  command->callback([request, json, &result] {
    const TrainResult r = train(*request);
    if (*json) print_json(to_json(r));
    result.exit_code = r.exit_code;
  });
}

}  // namespace mythos::cli
