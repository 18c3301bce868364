#include "cli/launch.h"

#include "base/error.h"
#include "base/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace mythos::cli {
namespace {

std::vector<std::string> command_for(int ranks, bool gpus) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (gpus) {
    return {"torchrun", "--no-python", "--standalone", "--nproc-per-node", std::to_string(ranks), program};
  }
  return {"mpirun", "-n", std::to_string(ranks), "--bind-to", "none", "--oversubscribe", program};
}

[[noreturn]] void become(std::vector<std::string> command) {
  // Ctrl-C is for this program alone, which passes it on; and the ranks end with it, however it ends.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGPIPE}) ::signal(number, SIG_DFL);
  // One machine: a copy through memory that needs no rights. A container's only user is often root.
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  if (::geteuid() == 0) {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

int run_ranks(int ranks, bool gpus, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = command_for(ranks, gpus);
  const std::string launcher = command[0];
  command.insert(command.end(), arguments.begin(), arguments.end());
  const pid_t child = ::fork();
  if (child < 0) throw failure(fmt::format("{} cannot be started", launcher));
  if (child == 0) become(std::move(command));
  int status = 0;
  for (bool passed_on = false;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) throw failure(fmt::format("{} got lost", launcher));
    if (stop_requested() && !passed_on) {
      passed_on = true;
      // mpirun takes SIGTERM for the end of everything; this one it hands to the ranks.
      ::kill(child, gpus ? SIGTERM : SIGUSR2);
    }
    const timespec pause{0, 20'000'000};
    ::nanosleep(&pause, nullptr);
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 127) {
    throw usage_error(fmt::format("{} is not installed, and --nproc needs it", launcher),
                      gpus ? "pip install torch brings it" : "apt-get install openmpi-bin");
  }
  return code > 128 && stop_requested() ? 128 + stop_signal() : code;
}

}  // namespace mythos::cli
