#include "kernels/cuda/sum.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

template <class T, int V>
struct AddSquares {
  SquaresArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t part) const {
    const int64_t step = static_cast<int64_t>(team.size()) * V;
    const double sum = team.sum<double>([&](int lane) {
      double own = 0;
      for (int64_t i = part * step + lane * V; i < a.count; i += square_parts * step) {
        const auto x = load<V>(static_cast<const T*>(a.numbers) + i);
        for (int j = 0; j < V; ++j) own += static_cast<double>(x[j]) * static_cast<double>(x[j]);
      }
      return own;
    });
    team.each([&](int lane) {
      if (lane == 0) a.squares[part] += sum;
    });
  }
};

struct SumNumbers {
  SumArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t) const {
    const double sum = team.sum<double>([&](int lane) {
      double own = 0;
      for (int64_t i = lane; i < a.count; i += team.size()) own += a.numbers[i];
      return own;
    });
    team.each([&](int lane) {
      if (lane == 0) *a.out = sum;
    });
  }
};

void add_squares(const SquaresArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.count}, {a.numbers}, [&](auto v) {
      launch({square_parts, 256, 0, stream}, AddSquares<T, v>{a});
    });
  });
}

void sum_numbers(const SumArgs& a, void* stream) { launch({1, 1024, 0, stream}, SumNumbers{a}); }

}  // namespace mythos::cuda::MYTHOS_KERNELS
