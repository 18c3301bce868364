# How several processes speak with each other. Defines MYTHOS_MPI and MYTHOS_NCCL; with neither the program trains in one
# process. MPI is taken where it is there (-DMYTHOS_MPI=OFF: not even then); the core alone asks for it by name.
set(mpi_wanted ON)
if(MYTHOS_CORE_ONLY)
  set(mpi_wanted OFF)
endif()
option(MYTHOS_MPI "ranks over MPI" ${mpi_wanted})
if(MYTHOS_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI COMPONENTS CXX QUIET)
  if(MPI_CXX_FOUND)
    message(STATUS "MPI ${MPI_CXX_VERSION} of ${MPI_CXX_COMPILER}")
  else()
    message(STATUS "no MPI (libopenmpi-dev): built for one process")
  endif()
endif()

# NCCL's header lies beside LibTorch in its own wheel, or among the system's.
if(MYTHOS_CUDA)
  find_path(NCCL_INCLUDE nccl.h HINTS "${torch_dir}/../nvidia/nccl/include" "${torch_dir}/../nvidia/cu13/include")
endif()
