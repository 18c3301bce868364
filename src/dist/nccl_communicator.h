// Ranks over NCCL, through LibTorch's c10d, for GPUs.
#pragma once

#include "dist/communicator.h"

namespace mythos {

/// The processes that torchrun started, or that have its environment (MASTER_ADDR, MASTER_PORT), each with GPU
/// `local_rank` of its machine. Tensors on the GPU go by NCCL; the few on the CPU, by which ranks agree, through the
/// store at MASTER_ADDR. Throws Error where this build has no NCCL.
std::shared_ptr<Communicator> nccl_world(int64_t rank, int64_t size, int64_t local_rank);

}  // namespace mythos
