#include "kernels/cuda/embedding.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

constexpr int embedding_ahead = 4;  // rows under way at once: adding waits for memory otherwise

// A team for every place and every stretch of columns; those of places in the middle of a run of equal ids have nothing
// to do.
template <class T, class Out, int V>
struct EmbeddingGradient {
  EmbeddingArgs a;
  int64_t stretches;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    using A = Accumulate<T>;
    const int64_t first = piece / stretches;
    const int64_t id = a.ids[first];
    if (first > 0 && a.ids[first - 1] == id) return;
    team.each([&](int lane) {
      const int64_t column = (piece % stretches * team.size() + lane) * V;
      if (column >= a.width) return;
      const T* const dy = static_cast<const T*>(a.dy) + column;
      Values<A, V> sum{};
      int64_t i = first;
      while (i < a.count && a.ids[i] == id) {
        // Ids ascend: with the last of these all are alike.
        const bool several = i + embedding_ahead <= a.count && a.ids[i + embedding_ahead - 1] == id;
        if (!several) {
          const auto row = load<V>(dy + a.order[i++] * a.width);
          for (int j = 0; j < V; ++j) sum[j] += row[j];
          continue;
        }
        Values<A, V> rows[embedding_ahead];
        for (int r = 0; r < embedding_ahead; ++r) rows[r] = load<V>(dy + a.order[i + r] * a.width);
        for (int r = 0; r < embedding_ahead; ++r) {
          for (int j = 0; j < V; ++j) sum[j] += rows[r][j];
        }
        i += embedding_ahead;
      }
      Out* const out = static_cast<Out*>(a.out) + id * a.width + column;
      constexpr int most = vector_width<Out> < V ? vector_width<Out> : V;
      for (int from = 0; from < V; from += most) {
        auto o = load<most>(out + from);
        for (int j = 0; j < most; ++j) o[j] += sum[from + j];
        store(out + from, o);
      }
    });
  }
};

void embedding_gradient(const EmbeddingArgs& a, void* stream) {
  const auto run = [&](auto zero, auto out) {
    using T = decltype(zero);
    using Out = decltype(out);
    with_vectors<T>({a.width}, {a.dy, a.out}, [&](auto v) {
      const int lanes = lanes_for(a.width / v, 64);
      const int64_t columns = static_cast<int64_t>(lanes) * v, stretches = (a.width + columns - 1) / columns;
      launch({a.count * stretches, lanes, 0, stream}, EmbeddingGradient<T, Out, v>{a, stretches});
    });
  };
  with_type(a.type, [&](auto zero) {
    if (a.type == a.out_type) {
      run(zero, zero);
    } else if constexpr (sizeof(zero) == sizeof(Bf16)) {
      run(zero, float());
    }
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
