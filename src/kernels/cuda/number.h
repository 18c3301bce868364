// Numbers as the kernels see them: bfloat16 by its bits, vectors for wide loads, and the type that sums are kept in.
// Compiles for the device and for the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MYTHOS_INLINE __device__ __forceinline__
#define MYTHOS_KERNELS on_device
#else
#define MYTHOS_INLINE inline
#define MYTHOS_KERNELS on_host
#endif

namespace mythos::cuda {

enum class Type { f32, f64, bf16 };

namespace MYTHOS_KERNELS {

struct Bf16 {
  uint16_t bits;
};

MYTHOS_INLINE float wide(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
MYTHOS_INLINE float wide(float x) { return x; }
MYTHOS_INLINE double wide(double x) { return x; }

// To the nearest, halves to even; NaN stays NaN.
template <class T>
struct Narrow {
  template <class A>
  static MYTHOS_INLINE T of(A x) {
    return static_cast<T>(x);
  }
};
template <>
struct Narrow<Bf16> {
  static MYTHOS_INLINE Bf16 of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
    return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
  }
};
template <class T, class A>
MYTHOS_INLINE T narrow(A x) {
  return Narrow<T>::of(x);
}

template <class T>
struct AccumulateOf {
  using type = float;
};
template <>
struct AccumulateOf<double> {
  using type = double;
};
/// fp32 at least.
template <class T>
using Accumulate = typename AccumulateOf<T>::type;

/// What one lane loads or stores at once, in fp32 at least.
template <class A, int V>
struct Values {
  A v[V];
  MYTHOS_INLINE A& operator[](int i) { return v[i]; }
  MYTHOS_INLINE const A& operator[](int i) const { return v[i]; }
};

template <class T, int V>
struct alignas(V * sizeof(T)) Packed {
  T v[V];
};

/// V numbers from p, which is a multiple of V of them from an aligned beginning.
template <int V, class T>
MYTHOS_INLINE Values<Accumulate<T>, V> load(const T* p) {
  const Packed<T, V> packed = *reinterpret_cast<const Packed<T, V>*>(p);
  Values<Accumulate<T>, V> out;
  for (int i = 0; i < V; ++i) out.v[i] = wide(packed.v[i]);
  return out;
}
template <class T, class A, int V>
MYTHOS_INLINE void store(T* p, const Values<A, V>& x) {
  Packed<T, V> packed;
  for (int i = 0; i < V; ++i) packed.v[i] = narrow<T>(x.v[i]);
  *reinterpret_cast<Packed<T, V>*>(p) = packed;
}

/// Numbers in 16 bytes.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));

MYTHOS_INLINE float exponential(float x) { return expf(x); }
MYTHOS_INLINE double exponential(double x) { return exp(x); }
MYTHOS_INLINE float logarithm(float x) { return logf(x); }
MYTHOS_INLINE double logarithm(double x) { return ::log(x); }
MYTHOS_INLINE float root(float x) { return sqrtf(x); }
MYTHOS_INLINE double root(double x) { return sqrt(x); }
template <class A>
MYTHOS_INLINE A sigmoid(A x) {
  return A(1) / (A(1) + exponential(-x));
}
template <class A>
MYTHOS_INLINE A larger(A a, A b) {
  return a > b ? a : b;
}

}  // namespace MYTHOS_KERNELS
}  // namespace mythos::cuda
