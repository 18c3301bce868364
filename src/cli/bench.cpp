#include "cli/bench.h"

#include "cli/commands.h"

namespace mythos::cli {

void add_bench(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("bench", "Figures with their limits beside them");
  command->require_subcommand(1);
  add_bench_data(*command);
}

}  // namespace mythos::cli
