#include "kernels/cuda/cross_entropy.h"

#include "kernels/cuda/team.h"

#include <limits>

namespace mythos::cuda::MYTHOS_KERNELS {

template <int V>
struct Count {
  static constexpr int value = V;
};

// f(Count<V>, i) for the places i .. i + V - 1 of a row that begins anywhere: 16 bytes at a time between the first and
// the last address that is a multiple of them, single numbers before and after.
template <class T, class F>
MYTHOS_INLINE void for_unaligned(const Team& team, int lane, const T* row, int64_t width, const F& f) {
  constexpr int most = vector_width<T>;
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t before = (most - past) % most;
  const int64_t head = before < width ? before : width;
  const int64_t tail = head + (width - head) / most * most;
  for (int64_t i = lane; i < head; i += team.size()) f(Count<1>(), i);
  for_columns<most>(team, lane, tail - head, [&](int64_t i) { f(Count<most>(), head + i); });
  for (int64_t i = tail + lane; i < width; i += team.size()) f(Count<1>(), i);
}

template <class T>
struct CrossEntropy {
  CrossEntropyArgs a;
  double not_a_number, lowest;  // of A, finite
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    T* const x = static_cast<T*>(a.logits) + row * a.classes;
    const int64_t target = a.targets[row];
    if (target < 0 || target >= a.classes) {
      team.each([&](int lane) {
        if (lane == 0) a.losses[row] = target == a.ignored ? 0 : not_a_number;
        if (!a.gradients) return;
        for_unaligned(team, lane, x, a.classes,
                      [&](auto count, int64_t i) { store(x + i, Values<A, decltype(count)::value>{}); });
      });
      return;
    }
    // Each lane's largest, and its sum of exponentials over that.
    A* const largest = team.scratch<A>();
    A* const sums = largest + team.size();
    const A at_target = wide(x[target]);
    team.each([&](int lane) {
      A top = static_cast<A>(lowest), sum = 0;  // finite: a class ruled out by -inf counts nothing
      for_unaligned(team, lane, x, a.classes, [&](auto count, int64_t i) {
        constexpr int n = decltype(count)::value;
        const auto l = load<n>(x + i);
        A most = top;
        for (int j = 0; j < n; ++j) most = l[j] > most ? l[j] : most;
        if (most > top) {
          sum *= exponential(top - most);
          top = most;
        }
        for (int j = 0; j < n; ++j) sum += exponential(l[j] - top);
      });
      largest[lane] = top;
      sums[lane] = sum;
    });
    const A top = team.largest<A>([&](int lane) { return largest[lane]; });
    const A sum = team.sum<A>([&](int lane) { return sums[lane] * exponential(largest[lane] - top); });
    team.each([&](int lane) {
      if (lane == 0) {
        a.losses[row] =
            (static_cast<double>(top) - static_cast<double>(at_target)) + static_cast<double>(logarithm(sum));
      }
      if (!a.gradients) return;
      const A scale = static_cast<A>(a.scale), factor = scale / sum;
      for_unaligned(team, lane, x, a.classes, [&](auto count, int64_t i) {
        constexpr int n = decltype(count)::value;
        auto g = load<n>(x + i);
        for (int j = 0; j < n; ++j) g[j] = exponential(g[j] - top) * factor - (i + j == target ? scale : A(0));
        store(x + i, g);
      });
    });
  }
};

void cross_entropy(const CrossEntropyArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const int lanes = lanes_for(a.classes / vector_width<T>, 512);
    const size_t scratch = 2 * static_cast<size_t>(lanes) * sizeof(Accumulate<T>);
    launch({a.rows, lanes, scratch, stream},
           CrossEntropy<T>{a, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<Accumulate<T>>::lowest()});
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
