// The processes of one run, and how they agree.
#pragma once

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/peer_watch.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace mythos {

/// Another rank has ended the run: it has said why, so there is nothing to add here.
class PeerFailed : public Error {
 public:
  PeerFailed(ExitCode code, int64_t rank, const std::string& why)
      : Error(code, fmt::format("rank {} has ended the run: {}", rank, why)) {}
};

/// What started this process as one of several, as its environment says.
struct Launch {
  enum class By { nobody, mpi, torchrun };
  By by = By::nobody;
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  ///< among those on this machine: its GPU
};
/// mpirun (OMPI_COMM_WORLD_SIZE), srun (PMIX_RANK with SLURM_NTASKS), torchrun (RANK, WORLD_SIZE, MASTER_ADDR). One
/// process alone counts as nobody's. Throws usage Error for numbers that cannot be.
Launch launch_of_environment();

class Team {
 public:
  /// One process by itself.
  Team();
  /// Several that have found each other, and watch each other from now on.
  Team(std::shared_ptr<Communicator> world, double timeout_seconds);
  /// As `launch` says: MPI, or c10d with NCCL (`cuda`). Throws usage Error for what this build lacks.
  Team(const Launch& launch, bool cuda, double timeout_seconds = 60);

  [[nodiscard]] int64_t rank() const { return world_->rank(); }
  [[nodiscard]] int64_t size() const { return world_->size(); }
  [[nodiscard]] bool first() const { return rank() == 0; }
  [[nodiscard]] bool several() const { return size() > 1; }
  [[nodiscard]] const std::shared_ptr<Communicator>& world() const { return world_; }
  [[nodiscard]] int64_t local_rank() const { return local_rank_; }
  /// Ranks on this machine, this one included.
  [[nodiscard]] int64_t ranks_here() const { return ranks_here_; }
  /// Threads for this rank where nobody says: its share of the processors that it may use.
  [[nodiscard]] int64_t default_threads() const { return default_threads_; }

  /// Runs `work`, in which no rank may wait for another, on each rank; if it fails on any, all throw: the ranks where
  /// it failed their own error, the others PeerFailed with its code.
  template <class Work>
  void together(const Work& work) {
    if (!several()) return work();
    std::exception_ptr error;
    std::string what;
    ExitCode code = ExitCode::done;
    try {
      work();
    } catch (const Error& e) {
      error = std::current_exception();
      what = e.line();
      code = e.code();
    } catch (const std::exception& e) {
      error = std::current_exception();
      what = e.what();
      code = ExitCode::failed;
    }
    end_if_failed(code, what, error);
  }
  /// The same on rank 0 alone.
  template <class Work>
  void first_alone(const Work& work) {
    together([&] {
      if (first()) work();
    });
  }
  /// Rank 0's number or text, on all.
  [[nodiscard]] int64_t of_first(int64_t own) { return all_numbers(*world_, std::vector<int64_t>{own})[0][0]; }
  [[nodiscard]] std::string of_first(const std::string& own) { return text_of(*world_, 0, own); }
  /// The largest of all ranks' numbers.
  [[nodiscard]] int64_t largest(int64_t own);

  void at_step(int64_t step);
  void set_timeout(double seconds);
  /// The run is over for all ranks, well or by an error that all know of: waits for them. Nothing can be agreed on
  /// afterwards.
  void leave();

 private:
  void end_if_failed(ExitCode code, const std::string& what, const std::exception_ptr& error);

  std::shared_ptr<Communicator> world_;
  std::unique_ptr<PeerWatch> watch_;
  int64_t local_rank_ = 0;
  int64_t ranks_here_ = 1;
  int64_t default_threads_ = 1;
  bool left_ = false;
};

}  // namespace mythos
