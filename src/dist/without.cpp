// What stands in where a build has no MPI, or no NCCL.
#include "base/error.h"
#include "dist/mpi_communicator.h"
#include "dist/nccl_communicator.h"

namespace mythos {

#ifndef MYTHOS_MPI
std::shared_ptr<Communicator> mpi_world() {
  throw usage_error("this process was started as one of several by MPI, and this build knows no MPI",
                    "install libopenmpi-dev and openmpi-bin and build again (scripts/setup does it)");
}
#endif

#ifndef MYTHOS_NCCL
std::shared_ptr<Communicator> nccl_world(int64_t /*rank*/, int64_t /*size*/, int64_t /*local_rank*/) {
  throw usage_error("this process was started as one of several on GPUs, and this build knows no NCCL",
                    "build with cmake --preset cuda, NCCL's headers beside LibTorch");
}
#endif

}  // namespace mythos
