// Ranks over MPI (Open MPI), for CPUs.
#pragma once

#include "dist/communicator.h"

namespace mythos {

/// All processes that mpirun or srun started. To be called once in a process, before anything else speaks MPI. Throws
/// Error where this build has no MPI.
std::shared_ptr<Communicator> mpi_world();

}  // namespace mythos
