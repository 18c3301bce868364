// Programs of several ranks, started by mpirun on this machine, as many as are asked for.
#pragma once

#include "program.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

namespace mythos::testing {

/// mpirun's options for N ranks of one machine, however few processors it has.
inline std::vector<std::string> mpirun_options(int ranks) {
  return {
      "-n",  std::to_string(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism",
      "none"};
}

inline Program::Options mpirun_program(const std::filesystem::path& folder = std::filesystem::temp_directory_path()) {
  Program::Options options;
  options.folder = folder;
  options.program = MYTHOS_MPIRUN;
  // A container's only user is often root, and its PMIx can leave its folder behind.
  options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"OMP_NUM_THREADS", "1"},
                         {"GOMP_SPINCOUNT", "0"}};
  return options;
}

/// `arguments`: the program of each rank and what it is given.
inline std::unique_ptr<Program> start_ranks(int ranks, const std::vector<std::string>& arguments,
                                            const std::filesystem::path& folder) {
  auto all = mpirun_options(ranks);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return std::make_unique<Program>(std::move(all), mpirun_program(folder));
}
inline Outcome run_ranks(int ranks, const std::vector<std::string>& arguments) {
  auto all = mpirun_options(ranks);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(std::move(all), mpirun_program());
}

/// The processes of mpirun's ranks, by rank; those that are not there (yet) are 0.
inline std::vector<pid_t> processes_of(pid_t mpirun, int ranks) {
  std::vector<pid_t> out(static_cast<size_t>(ranks), 0);
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ec)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    std::getline(stat, line);
    const size_t name_ends = line.rfind(')');
    if (name_ends == std::string::npos || name_ends + 4 > line.size()) continue;
    if (std::atoi(line.c_str() + name_ends + 4) != mpirun) continue;
    std::ifstream environ(entry.path() / "environ", std::ios::binary);
    for (std::string variable; std::getline(environ, variable, '\0');) {
      if (!variable.starts_with("OMPI_COMM_WORLD_RANK=")) continue;
      const int rank = std::atoi(variable.c_str() + 21);
      if (rank >= 0 && rank < ranks) out[static_cast<size_t>(rank)] = pid;
    }
  }
  return out;
}

}  // namespace mythos::testing
