// Every random choice derives from (seed, step, purpose), so a resumed run repeats it.
#pragma once

#include <cstdint>
#include <string_view>

namespace mythos {

__extension__ typedef unsigned __int128 Uint128;  // not ISO C++, but in every compiler this is built with

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014): a bijective mix of 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A seed for one purpose at one step.
constexpr uint64_t derive_seed(uint64_t seed, uint64_t step, std::string_view purpose) {
  uint64_t h = mix64(seed);
  for (const char c : purpose) h = mix64(h ^ static_cast<unsigned char>(c));
  return mix64(mix64(h) + step);
}

/// SplitMix64, a small generator for choices outside tensors; the same sequence on every machine.
class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() {
    const uint64_t value = mix64(state_);
    state_ += 0x9e3779b97f4a7c15ULL;  // not 1: neighbouring seeds would give the same numbers, shifted
    return value;
  }
  /// Uniform in [0, bound); bound > 0. The bias is below 2^-32 for bounds below 2^32.
  constexpr uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Uint128>(next()) * bound) >> 64);
  }
  /// Uniform in [0, 1).
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace mythos
