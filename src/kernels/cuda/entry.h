// How tensors reach the kernels: which form runs where, and on what stream.
#pragma once

#include "kernels/cuda/number.h"

namespace mythos::cuda {

struct Where {
  bool device = false;
  void* stream = nullptr;  ///< cudaStream_t, of the device
};

}  // namespace mythos::cuda

// MYTHOS_ENTRY(name, Args): name(args, where) runs the kernel launcher on_device::name or on_host::name, which are made
// from one source: NAME.cu, compiled by nvcc and, through on_host.cpp, by the C++ compiler.
#ifdef MYTHOS_CUDA
#define MYTHOS_ENTRY(name, Args)                                                       \
  namespace on_host {                                                                  \
  void name(const Args& args, void* stream);                                           \
  }                                                                                    \
  namespace on_device {                                                                \
  void name(const Args& args, void* stream);                                           \
  }                                                                                    \
  inline void name(const Args& args, const Where& where) {                             \
    where.device ? on_device::name(args, where.stream) : on_host::name(args, nullptr); \
  }
#else
#define MYTHOS_ENTRY(name, Args)             \
  namespace on_host {                        \
  void name(const Args& args, void* stream); \
  }                                          \
  inline void name(const Args& args, const Where&) { on_host::name(args, nullptr); }
#endif
