// What a kernel is written for: a team of lanes that works on one piece of the problem. On the device a team is a block
// of threads. On the host its lanes take turns, phase by phase, and sums are added in the device's order: tests run the
// same source there, at every size.
//
// A kernel is a struct with its arguments and `operator()(const Team& team, int64_t piece)`. Between phases (each,
// sums, largest) all lanes meet; nothing but memory carries over from one to the next.
#pragma once

#include "kernels/cuda/number.h"

#include <cstddef>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace mythos::cuda::MYTHOS_KERNELS {

inline constexpr int warp = 32;
inline constexpr int most_lanes = 1024;

struct Shape {
  int64_t teams = 0;
  int lanes = 128;     ///< of a team: a multiple of 32, at most 1,024
  size_t scratch = 0;  ///< bytes that a team's lanes share, at most 48 KiB
  void* stream = nullptr;
};
inline constexpr size_t most_scratch = 48 << 10;

/// Lanes for rows of this many steps of one lane: whole warps, few enough that none idles.
inline int lanes_for(int64_t steps, int most = 256) {
  return static_cast<int>(std::clamp<int64_t>((steps + warp - 1) / warp * warp, warp, most));
}

#ifdef __CUDACC__

struct Team {
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  /// f(lane) on every lane.
  template <class F>
  __device__ void each(const F& f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  /// f(lane, values) adds to K zeros of the lane; every lane gets the sums over all.
  template <int K, class A, class F>
  __device__ Values<A, K> sums(const F& f) const {
    Values<A, K> own{};
    f(static_cast<int>(threadIdx.x), own);
    return reduced<K, A>(own, [](A a, A b) { return a + b; });
  }
  template <class A, class F>
  __device__ A sum(const F& f) const {
    return sums<1, A>([&](int lane, Values<A, 1>& v) { v[0] = f(lane); })[0];
  }
  /// The largest of f(lane).
  template <class A, class F>
  __device__ A largest(const F& f) const {
    Values<A, 1> own{{f(static_cast<int>(threadIdx.x))}};
    return reduced<1, A>(own, [](A a, A b) { return larger(a, b); })[0];
  }
  template <class T>
  __device__ T* scratch() const {
    extern __shared__ double memory[];
    return reinterpret_cast<T*>(memory);
  }

 private:
  template <int K, class A, class Op>
  __device__ Values<A, K> reduced(Values<A, K> own, const Op& op) const {
    __shared__ A by_warp[K][most_lanes / warp];
    for (int distance = warp / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int k = 0; k < K; ++k) own[k] = op(own[k], __shfl_xor_sync(0xffffffffU, own[k], distance));
    }
    const int warps = size() / warp;
    __syncthreads();  // the last reduction's readers are done
    if (threadIdx.x % warp == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) by_warp[k][threadIdx.x / warp] = own[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      own[k] = by_warp[k][0];
      for (int w = 1; w < warps; ++w) own[k] = op(own[k], by_warp[k][w]);
    }
    return own;
  }
};

template <class Kernel>
__global__ void run_kernel(const __grid_constant__ Kernel kernel) {
  kernel(Team{}, static_cast<int64_t>(blockIdx.x));
}

template <class Kernel>
void launch(const Shape& shape, const Kernel& kernel) {
  if (shape.teams <= 0) return;
  run_kernel<<<static_cast<unsigned>(shape.teams), static_cast<unsigned>(shape.lanes), shape.scratch,
               static_cast<cudaStream_t>(shape.stream)>>>(kernel);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("a CUDA kernel did not start: ") + cudaGetErrorString(error));
  }
}

#else

class Team {
 public:
  Team(int lanes, size_t scratch) : lanes_(lanes), memory_((scratch + sizeof(double) - 1) / sizeof(double)) {}
  [[nodiscard]] int size() const { return lanes_; }
  template <class F>
  void each(const F& f) const {
    for (int lane = 0; lane < lanes_; ++lane) f(lane);
  }
  template <int K, class A, class F>
  Values<A, K> sums(const F& f) const {
    std::vector<Values<A, K>> own(static_cast<size_t>(lanes_), Values<A, K>{});
    for (int lane = 0; lane < lanes_; ++lane) f(lane, own[static_cast<size_t>(lane)]);
    return reduced<K, A>(own, [](A a, A b) { return a + b; });
  }
  template <class A, class F>
  A sum(const F& f) const {
    return sums<1, A>([&](int lane, Values<A, 1>& v) { v[0] = f(lane); })[0];
  }
  template <class A, class F>
  A largest(const F& f) const {
    std::vector<Values<A, 1>> own;
    for (int lane = 0; lane < lanes_; ++lane) own.push_back({{f(lane)}});
    return reduced<1, A>(own, [](A a, A b) { return larger(a, b); })[0];
  }
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(memory_.data());
  }

 private:
  // As the device does: within a warp each lane takes what its partner has, at half the distance each time; then warp
  // after warp.
  template <int K, class A, class Op>
  Values<A, K> reduced(std::vector<Values<A, K>>& own, const Op& op) const {
    const auto at = [&own](int lane) -> Values<A, K>& { return own[static_cast<size_t>(lane)]; };
    for (int distance = warp / 2; distance > 0; distance /= 2) {
      const auto before = own;
      for (int lane = 0; lane < lanes_; ++lane) {
        for (int k = 0; k < K; ++k) at(lane)[k] = op(at(lane)[k], before[static_cast<size_t>(lane ^ distance)][k]);
      }
    }
    Values<A, K> total = own[0];
    for (int w = 1; w < lanes_ / warp; ++w) {
      for (int k = 0; k < K; ++k) total[k] = op(total[k], at(w * warp)[k]);
    }
    return total;
  }
  int lanes_;
  mutable std::vector<double> memory_;
};

template <class Kernel>
void launch(const Shape& shape, const Kernel& kernel) {
  if (shape.lanes % warp != 0 || shape.lanes > most_lanes || shape.scratch > most_scratch) {
    throw std::logic_error("a kernel asks for more than a block of threads has");
  }
  for (int64_t piece = 0; piece < shape.teams; ++piece) {
    const Team team(shape.lanes, shape.scratch);
    kernel(team, piece);
  }
}

#endif

/// f(T()) with the C++ type of `type`.
template <class F>
void with_type(Type type, const F& f) {
  switch (type) {
    case Type::f32:
      return f(float());
    case Type::f64:
      return f(double());
    case Type::bf16:
      return f(Bf16());
  }
}

/// f(std::integral_constant) with the numbers that a lane may take at once: 16 bytes of them where these widths and all
/// these addresses allow it, one otherwise.
template <class T, class F>
void with_vectors(std::initializer_list<int64_t> widths, std::initializer_list<const void*> addresses, const F& f) {
  constexpr int most = vector_width<T>;
  bool aligned = std::all_of(widths.begin(), widths.end(), [](int64_t width) { return width % most == 0; });
  for (const void* a : addresses) aligned = aligned && reinterpret_cast<uintptr_t>(a) % 16 == 0;
  if (aligned) return f(std::integral_constant<int, most>());
  f(std::integral_constant<int, 1>());
}

/// f(i) for i = V * lane, V * (lane + lanes), ... below `width`: V neighbouring numbers each time.
template <int V, class F>
MYTHOS_INLINE void for_columns(const Team& team, int lane, int64_t width, const F& f) {
  for (int64_t i = static_cast<int64_t>(lane) * V; i < width; i += static_cast<int64_t>(team.size()) * V) f(i);
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
