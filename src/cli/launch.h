// Starting several processes of this program on one machine.
#pragma once

#include <string>
#include <vector>

namespace mythos::cli {

/// Starts `ranks` processes of this program with `arguments` by mpirun (on CPUs) or torchrun (`gpus`), waits for them,
/// and returns the exit code. The first SIGINT, SIGTERM or SIGHUP asks the ranks to stop, with time to save; the second
/// ends them. Throws Error where the launcher is not installed.
int run_ranks(int ranks, bool gpus, const std::vector<std::string>& arguments);

}  // namespace mythos::cli
