#include "dist/team.h"

#include "base/log.h"
#include "base/machine.h"
#include "dist/mpi_communicator.h"
#include "dist/nccl_communicator.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace mythos {
namespace {

std::optional<int64_t> number_of(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == 0) return std::nullopt;
  const std::string_view all(text);
  int64_t n = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), n);
  if (error != std::errc() || end != all.data() + all.size() || n < 0 || n > (int64_t{1} << 20)) {
    throw usage_error(fmt::format("{} is '{}' in the environment, it must be a number", name, all));
  }
  return n;
}

}  // namespace

Launch launch_of_environment() {
  Launch launch;
  if (const auto size = number_of("OMPI_COMM_WORLD_SIZE")) {
    launch = {Launch::By::mpi, number_of("OMPI_COMM_WORLD_RANK").value_or(0), *size,
              number_of("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0)};
  } else if (number_of("WORLD_SIZE") && std::getenv("MASTER_ADDR") != nullptr) {
    launch = {Launch::By::torchrun, number_of("RANK").value_or(0), *number_of("WORLD_SIZE"),
              number_of("LOCAL_RANK").value_or(0)};
  } else if (number_of("PMIX_RANK") && number_of("SLURM_NTASKS")) {
    launch = {Launch::By::mpi, *number_of("PMIX_RANK"), *number_of("SLURM_NTASKS"),
              number_of("SLURM_LOCALID").value_or(0)};
  }
  if (launch.size <= 1) return {};
  if (launch.rank >= launch.size) {
    throw usage_error(fmt::format("the environment makes this rank {} of {}", launch.rank, launch.size));
  }
  return launch;
}

namespace {

// The processors that this process may use, as text.
std::string processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  std::string text;
  for (int i = 0; i < CPU_SETSIZE; ++i) text += CPU_ISSET(i, &set) ? '1' : '0';
  return text;
}

}  // namespace

Team::Team() : world_(std::make_shared<SingleProcess>()), default_threads_(mythos::default_threads()) {}

Team::Team(std::shared_ptr<Communicator> world, double timeout_seconds)
    : world_(std::move(world)), default_threads_(mythos::default_threads()) {
  if (!several()) return;
  const auto hosts = all_texts(*world_, host_name());
  const auto sets = all_texts(*world_, processors());
  const auto me = static_cast<size_t>(rank());
  int64_t sharing = 0;
  ranks_here_ = 0;
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] != hosts[me]) continue;
    ++ranks_here_;
    sharing += sets[r] == sets[me] ? 1 : 0;
  }
  // A number that somebody set is each rank's own.
  const char* const given = std::getenv("OMP_NUM_THREADS");
  if (given == nullptr || *given == 0) default_threads_ = std::max<int64_t>(1, default_threads_ / sharing);
  if (!first()) {
    log::set_quiet(true);
    log::set_prefix(fmt::format("rank {}: ", rank()));
  }
  watch_ = std::make_unique<PeerWatch>(*world_, timeout_seconds);
}

namespace {

std::shared_ptr<Communicator> world_of(const Launch& launch, bool cuda) {
  switch (launch.by) {
    case Launch::By::mpi:
      if (cuda) {
        throw usage_error("ranks started by MPI compute on CPUs, and train.device is a GPU",
                          "start ranks on GPUs with torchrun --no-python, or set train.device=cpu");
      }
      return mpi_world();
    case Launch::By::torchrun:
      if (!cuda) {
        throw usage_error("torchrun starts ranks on GPUs, and this run computes on the CPU",
                          "start ranks on CPUs with mpirun -n N, or with --nproc N");
      }
      return nccl_world(launch.rank, launch.size, launch.local_rank);
    case Launch::By::nobody:
      break;
  }
  return std::make_shared<SingleProcess>();
}

}  // namespace

Team::Team(const Launch& launch, bool cuda, double timeout_seconds) : Team(world_of(launch, cuda), timeout_seconds) {
  local_rank_ = launch.local_rank;
}

void Team::end_if_failed(ExitCode code, const std::string& what, const std::exception_ptr& error) {
  const auto codes = all_numbers(*world_, std::vector<int64_t>{static_cast<int64_t>(code)});
  const auto bad = std::find_if(codes.begin(), codes.end(), [](const auto& c) { return c[0] != 0; });
  if (bad == codes.end()) return;
  const int64_t who = bad - codes.begin();
  const std::string why = text_of(*world_, who, what);
  leave();
  if (error) std::rethrow_exception(error);
  throw PeerFailed(static_cast<ExitCode>((*bad)[0]), who, why);
}

int64_t Team::largest(int64_t own) {
  const auto all = all_numbers(*world_, std::vector<int64_t>{own});
  return (*std::max_element(all.begin(), all.end()))[0];
}

void Team::at_step(int64_t step) {
  if (watch_) watch_->at_step(step);
}

void Team::set_timeout(double seconds) {
  if (watch_) watch_->set_timeout(seconds);
}

void Team::leave() {
  if (!several() || left_) return;
  left_ = true;
  world_->barrier();
  watch_->leave();
  // Nobody closes a connection before all expect it.
  world_->leave();
}

}  // namespace mythos
