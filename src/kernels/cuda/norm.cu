#include "kernels/cuda/norm.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

// s of one row at columns i .. i + V - 1.
template <class T, int V>
MYTHOS_INLINE Values<Accumulate<T>, V> row_sum(const NormArgs& a, int64_t row, int64_t i) {
  using A = Accumulate<T>;
  Values<A, V> s = load<V>(static_cast<const T*>(a.x) + row * a.x_stride + i);
  if (a.signal != nullptr) {
    const A* signal = static_cast<const A*>(a.signal) + i;
    for (int j = 0; j < V; ++j) s[j] += signal[j];
  }
  if (a.added != nullptr) {
    const Values<A, V> more = load<V>(static_cast<const T*>(a.added) + row * a.width + i);
    for (int j = 0; j < V; ++j) s[j] += more[j];
  }
  if (a.signal != nullptr || a.added != nullptr) {
    for (int j = 0; j < V; ++j) s[j] = wide(narrow<T>(s[j]));
  }
  return s;
}

template <class T, int V>
struct NormForward {
  NormArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const A squares = team.sum<A>([&](int lane) {
      A sum = 0;
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        const auto s = row_sum<T, V>(a, row, i);
        for (int j = 0; j < V; ++j) sum += s[j] * s[j];
      });
      return sum;
    });
    const A rstd = A(1) / root(squares / static_cast<A>(a.width) + static_cast<A>(a.eps));
    team.each([&](int lane) {
      if (lane == 0) static_cast<A*>(a.rstd)[row] = rstd;
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        auto s = row_sum<T, V>(a, row, i);
        const int64_t at = row * a.width + i;
        if (a.sum != nullptr) store(static_cast<T*>(a.sum) + at, s);
        const auto w = load<V>(static_cast<const T*>(a.weight) + i);
        for (int j = 0; j < V; ++j) s[j] = s[j] * rstd * w[j];
        store(static_cast<T*>(a.y) + at, s);
      });
    });
  }
};

template <class T, int V>
struct NormBackward {
  NormBackwardArgs b;
  bool in_scratch;
  MYTHOS_INLINE void operator()(const Team& team, int64_t part) const {
    using A = Accumulate<T>;
    const NormArgs& a = b.forward;
    A* const out = static_cast<A*>(b.dweight) + part * a.width;
    A* const dweight = in_scratch ? team.scratch<A>() : out;
    team.each([&](int lane) {
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        for (int j = 0; j < V; ++j) dweight[i + j] = 0;
      });
    });
    for (int64_t row = part; row < a.rows; row += b.parts) {
      const A rstd = static_cast<const A*>(a.rstd)[row];
      // With n = s * rstd: ds = rstd * (w dy - n * mean(w dy n)).
      const A dot = team.sum<A>([&](int lane) {
        A sum = 0;
        for_columns<V>(team, lane, a.width, [&](int64_t i) {
          const auto s = row_sum<T, V>(a, row, i);
          const auto w = load<V>(static_cast<const T*>(a.weight) + i);
          const auto dy = load<V>(static_cast<const T*>(b.dy) + row * a.width + i);
          for (int j = 0; j < V; ++j) sum += w[j] * dy[j] * s[j];
        });
        return sum;
      });
      const A mean = dot * rstd / static_cast<A>(a.width);
      team.each([&](int lane) {
        for_columns<V>(team, lane, a.width, [&](int64_t i) {
          const int64_t at = row * a.width + i;
          const auto s = row_sum<T, V>(a, row, i);
          const auto w = load<V>(static_cast<const T*>(a.weight) + i);
          const auto dy = load<V>(static_cast<const T*>(b.dy) + at);
          Values<A, V> dx{};
          if (b.dsum != nullptr) dx = load<V>(static_cast<const T*>(b.dsum) + at);
          for (int j = 0; j < V; ++j) {
            const A n = s[j] * rstd;
            dx[j] += rstd * (w[j] * dy[j] - n * mean);
            dweight[i + j] += dy[j] * n;
          }
          store(static_cast<T*>(b.dx) + at, dx);
        });
      });
    }
    if (!in_scratch) return;
    team.each([&](int lane) {
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        for (int j = 0; j < V; ++j) out[i + j] = dweight[i + j];
      });
    });
  }
};

// A team for every 32 columns: lane (g, c) takes the parts g, g + groups, ... of column c.
template <class A, class Out>
struct AddParts {
  AddPartsArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    const int groups = team.size() / warp;
    A* const by_group = team.scratch<A>();
    team.each([&](int lane) {
      const int64_t column = piece * warp + lane % warp;
      A sum = 0;
      if (column < a.width) {
        for (int64_t p = lane / warp; p < a.parts; p += groups) {
          sum += static_cast<const A*>(a.rows)[p * a.width + column];
        }
      }
      by_group[lane] = sum;
    });
    team.each([&](int lane) {
      const int64_t column = piece * warp + lane;
      if (lane >= warp || column >= a.width) return;
      A sum = 0;
      for (int g = 0; g < groups; ++g) sum += by_group[g * warp + lane];
      Out* const out = static_cast<Out*>(a.out) + column;
      *out = narrow<Out>(a.overwrite ? sum : static_cast<A>(wide(*out)) + sum);
    });
  }
};

void norm_forward(const NormArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width, a.x_stride}, {a.x, a.added, a.signal, a.weight, a.sum, a.y}, [&](auto v) {
      launch({a.rows, lanes_for(a.width / v), 0, stream}, NormForward<T, v>{a});
    });
  });
}

void norm_backward(const NormBackwardArgs& b, void* stream) {
  const NormArgs& a = b.forward;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const size_t bytes = static_cast<size_t>(a.width) * sizeof(Accumulate<T>);
    const bool in_scratch = bytes <= most_scratch;
    with_vectors<T>({a.width, a.x_stride}, {a.x, a.added, a.signal, a.weight, b.dy, b.dsum, b.dx}, [&](auto v) {
      launch({b.parts, lanes_for(a.width / v), in_scratch ? bytes : 0, stream}, NormBackward<T, v>{b, in_scratch});
    });
  });
}

void add_parts(const AddPartsArgs& a, void* stream) {
  constexpr int lanes = 256;
  with_type(a.out_type, [&](auto zero) {
    using Out = decltype(zero);
    const Shape shape{(a.width + warp - 1) / warp, lanes, lanes * sizeof(double), stream};
    if (a.type == Type::f64) {
      if constexpr (sizeof(Out) == sizeof(double)) launch(shape, AddParts<double, Out>{a});
    } else {
      if constexpr (sizeof(Out) != sizeof(double)) launch(shape, AddParts<float, Out>{a});
    }
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
