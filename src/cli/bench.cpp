#include "cli/bench.h"

#include "cli/commands.h"

namespace mythos::cli {

void add_bench(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("bench", "Measure speed, with the limits beside it");
  command->require_subcommand(1);
  add_bench_train(*command);
  add_bench_tokenizer(*command);
  add_bench_data(*command);
  add_bench_ops(*command);
  add_bench_generate(*command);
}

}  // namespace mythos::cli
