#include "base/error.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/launch.h"
#include "train/trainer.h"

namespace mythos::cli {

namespace {

// What a rank is started with.
std::vector<std::string> arguments_of(const TrainRequest& r, bool json) {
  std::vector<std::string> arguments = {"train", r.config.string()};
  for (const auto& o : r.overrides) arguments.insert(arguments.end(), {"--set", o});
  if (r.steps) arguments.insert(arguments.end(), {"--steps", std::to_string(*r.steps)});
  if (!r.from.empty()) arguments.insert(arguments.end(), {"--from", r.from.string()});
  for (const auto& [given, name] : {std::pair(r.fresh, "--fresh"), std::pair(r.force, "--force"),
                                    std::pair(r.weights_only, "--weights-only"), std::pair(json, "--json")}) {
    if (given) arguments.emplace_back(name);
  }
  return arguments;
}

int train_as_asked(const TrainRequest& request, int64_t ranks, bool json) {
  const Launch launch = launch_of_environment();
  if (ranks > 1) {
    if (launch.size > 1) throw usage_error("--nproc starts ranks, and this process is one already", "leave it out");
    return run_ranks(static_cast<int>(ranks), trains_on_gpu(request), arguments_of(request, json));
  }
  auto team = std::make_shared<Team>();
  if (launch.size > 1) {
    install_rank_handler();
    team = std::make_shared<Team>(launch, trains_on_gpu(request));
  }
  try {
    const TrainResult r = train(request, team);
    if (json && team->first()) print_json(to_json(r));
    team->leave();
    return r.exit_code;
  } catch (const PeerFailed& e) {
    return static_cast<int>(e.code());
  }
}

}  // namespace

void add_train(CLI::App& app, Result& result) {
  auto request = std::make_shared<TrainRequest>();
  auto* command = app.add_subcommand("train", "Train a model; goes on by itself where the run stopped");
  command->add_option("CONFIG", request->config, "configuration file (docs/config.md lists its keys)")->required();
  add_overrides(*command, request->overrides);
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
  auto ranks = std::make_shared<int64_t>(1);
  command
      ->add_option_function<int64_t>(
          "--nproc",
          [ranks](const int64_t& n) {
            if (n < 1 || n > 4096) throw usage_error(fmt::format("--nproc is {}, it must be 1 to 4096", n));
            *ranks = n;
          },
          "train with so many processes on this machine (mpirun on CPUs, torchrun on GPUs)")
      ->type_name("N");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON document on standard output when it ends");
  command->footer("Example:\n  mythos train configs/demo.toml --set train.lr=1e-3 --steps 200");
  command->callback([request, ranks, json, &result] { result.exit_code = train_as_asked(*request, *ranks, *json); });
}

}  // namespace mythos::cli
