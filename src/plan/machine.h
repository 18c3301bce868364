// What this machine is and can do: threads, memory, and the matrix-multiply rate it really reaches.
#pragma once

#include "model/config.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mythos {

/// CPUs this process may use: affinity and the cgroup's quota taken into account.
int64_t usable_cpus();
/// Memory this process may use in bytes: the machine's, or the cgroup's limit where that is lower.
int64_t usable_memory();
/// Memory available now without swapping, bytes.
int64_t available_memory();
/// Resident memory of this process, bytes: now, and the most so far.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// "AMD EPYC (2 CPUs)" or the GPU's name.
std::string device_name(at::Device device);
std::string host_name();
/// "2.15.0"
std::string libtorch_version();

/// One matrix shape of a training step, C[m, n] = A[m, k] B[k, n], and the share of the step's FLOPs it stands for.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  double flops = 0;  ///< per token
};
/// The shapes that hold the FLOPs of this model with `tokens` tokens in a micro-batch.
std::vector<GemmShape> gemm_shapes(const ModelConfig& config, int64_t tokens, int64_t loops);

/// FLOP/s of matrix multiplies in these shapes, FLOP-weighted, best of several runs each; takes about `seconds` in all.
double measure_gemm_rate(const std::vector<GemmShape>& shapes, at::Device device, at::ScalarType dtype,
                         double seconds = 1.5);

}  // namespace mythos
