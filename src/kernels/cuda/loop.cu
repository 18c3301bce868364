#include "kernels/cuda/loop.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

template <class T, int V>
MYTHOS_INLINE Values<Accumulate<T>, V> decay(const LoopUpdateArgs& a, int64_t i) {
  using A = Accumulate<T>;
  const A log_dt = wide(*static_cast<const T*>(a.log_dt));
  auto x = load<V>(static_cast<const T*>(a.log_a) + i);
  for (int j = 0; j < V; ++j) {
    A bounded = log_dt + x[j];
    bounded = bounded < static_cast<A>(a.low_bound) ? static_cast<A>(a.low_bound) : bounded;
    bounded = bounded > static_cast<A>(a.high_bound) ? static_cast<A>(a.high_bound) : bounded;
    x[j] = exponential(-exponential(bounded));
  }
  return x;
}

template <class T, int V>
MYTHOS_INLINE Values<Accumulate<T>, V> row_of(const void* rows, int64_t row, int64_t width, int64_t i) {
  return load<V>(static_cast<const T*>(rows) + row * width + i);
}

// One position's halting, and its derivative.
template <class A>
struct Halting {
  A p, cumulative, threshold;
  bool halted;
  MYTHOS_INLINE bool last() const { return cumulative + p >= threshold; }
  MYTHOS_INLINE A weight() const { return halted ? A(0) : last() ? larger(A(1) - cumulative, A(0)) : p; }
  MYTHOS_INLINE A next() const { return halted ? cumulative : cumulative + p; }
  // The gradient of p; adds the weight's to that of `cumulative`.
  MYTHOS_INLINE A backward(A dweight, A& dcumulative) const {
    if (halted) return A(0);
    if (!last()) return dcumulative + dweight;
    const A dp = dcumulative;
    if (A(1) - cumulative >= A(0)) dcumulative -= dweight;
    return dp;
  }
};

template <class T, int V>
struct LoopUpdate {
  LoopUpdateArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const T* const low = static_cast<const T*>(a.low) + row * a.rank;
    T* const state = static_cast<T*>(a.state) + row * a.width;
    // The state as it is stored is what halts and what is summed.
    const A dot = team.sum<A>([&](int lane) {
      A own = 0;
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        const auto decays = decay<T, V>(a, i);
        const auto h = row_of<T, V>(a.h, row, a.width, i), e = row_of<T, V>(a.e, row, a.width, i);
        const auto u = row_of<T, V>(a.u, row, a.width, i), b = load<V>(static_cast<const T*>(a.b) + i);
        Values<A, V> s;
        for (int j = 0; j < V; ++j) s[j] = decays[j] * h[j] + b[j] * e[j] + u[j];
        for (int64_t r = 0; r < a.rank; ++r) {
          const A scale = wide(low[r]);
          const auto more = load<V>(static_cast<const T*>(a.lora) + r * a.width + i);
          for (int j = 0; j < V; ++j) s[j] += scale * more[j];
        }
        store(state + i, s);
        const auto halt = load<V>(static_cast<const T*>(a.halt) + i);
        for (int j = 0; j < V; ++j) own += wide(narrow<T>(s[j])) * halt[j];
      });
      return own;
    });
    const Halting<A> halting{sigmoid(dot + wide(*static_cast<const T*>(a.bias))),
                             static_cast<const A*>(a.cumulative)[row], static_cast<A>(a.threshold), a.halted[row]};
    const A weight = halting.weight();
    team.each([&](int lane) {
      if (lane == 0) {
        static_cast<A*>(a.p)[row] = halting.p;
        static_cast<A*>(a.weight)[row] = weight;
        static_cast<A*>(a.cumulative_out)[row] = halting.next();
        a.halted_out[row] = halting.halted || halting.next() >= halting.threshold;
      }
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        const auto s = load<V>(state + i);  // this lane's own
        const A* const before = static_cast<const A*>(a.sum) + row * a.width + i;
        A* const after = static_cast<A*>(a.sum_out) + row * a.width + i;
        for (int j = 0; j < V; ++j) after[j] = before[j] + weight * s[j];
      });
    });
  }
};

template <class T, int V>
struct LoopUpdateBackward {
  LoopUpdateBackwardArgs b;
  bool in_scratch;
  static constexpr int ranks_at_once = 8;
  MYTHOS_INLINE void operator()(const Team& team, int64_t part) const {
    using A = Accumulate<T>;
    const LoopUpdateArgs& a = b.forward;
    A* const out = static_cast<A*>(b.sums) + part * (3 * a.width + 1);
    // The last place, of the bias, is lane 0's alone.
    A* const sums = in_scratch ? team.scratch<A>() : out;
    team.each([&](int lane) {
      for (int64_t i = lane; i <= 3 * a.width; i += team.size()) sums[i] = 0;
    });
    for (int64_t row = part; row < a.rows; row += b.parts) {
      const A* const dsum = static_cast<const A*>(b.dsum_out) + row * a.width;
      const A dweight = team.sum<A>([&](int lane) {
        A own = 0;
        for_columns<V>(team, lane, a.width, [&](int64_t i) {
          const auto state = row_of<T, V>(a.state, row, a.width, i);
          for (int j = 0; j < V; ++j) own += dsum[i + j] * state[j];
        });
        return own;
      });
      const A p = static_cast<const A*>(a.p)[row], weight = static_cast<const A*>(a.weight)[row];
      const Halting<A> halting{p, static_cast<const A*>(a.cumulative)[row], static_cast<A>(a.threshold), a.halted[row]};
      A dcumulative = b.dcumulative_out != nullptr ? static_cast<const A*>(b.dcumulative_out)[row] : A(0);
      const A dlogit = halting.backward(dweight, dcumulative) * (A(1) - p) * p;
      T* const du = static_cast<T*>(b.du) + row * a.width;
      team.each([&](int lane) {
        if (lane == 0) {
          static_cast<A*>(b.dcumulative)[row] = dcumulative;
          sums[3 * a.width] += dlogit;
        }
        for_columns<V>(team, lane, a.width, [&](int64_t i) {
          Values<A, V> g{};
          if (b.dstate != nullptr) g = row_of<T, V>(b.dstate, row, a.width, i);
          const auto halt = load<V>(static_cast<const T*>(a.halt) + i);
          for (int j = 0; j < V; ++j) g[j] += weight * dsum[i + j] + dlogit * halt[j];
          store(du + i, g);
          const auto h = row_of<T, V>(a.h, row, a.width, i), e = row_of<T, V>(a.e, row, a.width, i);
          const auto state = row_of<T, V>(a.state, row, a.width, i);
          for (int j = 0; j < V; ++j) {
            sums[i + j] += g[j] * h[j];
            sums[a.width + i + j] += g[j] * e[j];
            sums[2 * a.width + i + j] += dlogit * state[j];
          }
          auto dh = decay<T, V>(a, i);
          for (int j = 0; j < V; ++j) dh[j] *= g[j];
          store(static_cast<T*>(b.dh) + row * a.width + i, dh);
          auto de = load<V>(static_cast<const T*>(a.b) + i);
          for (int j = 0; j < V; ++j) de[j] *= g[j];
          store(static_cast<T*>(b.de) + row * a.width + i, de);
        });
      });
      for (int64_t first = 0; first < a.rank; first += ranks_at_once) {
        const int64_t ranks = a.rank - first < ranks_at_once ? a.rank - first : ranks_at_once;
        const auto dlow = team.sums<ranks_at_once, A>([&](int lane, Values<A, ranks_at_once>& own) {
          for_columns<V>(team, lane, a.width, [&](int64_t i) {
            const auto g = load<V>(du + i);  // this lane's own
            for (int r = 0; r < ranks_at_once; ++r) {
              if (r >= ranks) break;
              const auto lora = load<V>(static_cast<const T*>(a.lora) + (first + r) * a.width + i);
              for (int j = 0; j < V; ++j) own[r] += g[j] * lora[j];
            }
          });
        });
        team.each([&](int lane) {
          if (lane < ranks) static_cast<T*>(b.dlow)[row * a.rank + first + lane] = narrow<T>(dlow[lane]);
        });
      }
    }
    if (!in_scratch) return;
    team.each([&](int lane) {
      for (int64_t i = lane; i <= 3 * a.width; i += team.size()) out[i] = sums[i];
    });
  }
};

void loop_update_forward(const LoopUpdateArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width}, {a.h, a.e, a.u, a.lora, a.log_a, a.b, a.halt, a.state}, [&](auto v) {
      launch({a.rows, lanes_for(a.width / v), 0, stream}, LoopUpdate<T, v>{a});
    });
  });
}

void loop_update_backward(const LoopUpdateBackwardArgs& b, void* stream) {
  const LoopUpdateArgs& a = b.forward;
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    const size_t bytes = static_cast<size_t>(3 * a.width + 1) * sizeof(Accumulate<T>);
    const bool in_scratch = bytes <= most_scratch;
    with_vectors<T>({a.width}, {a.h, a.e, a.lora, a.log_a, a.b, a.halt, a.state, b.dstate, b.dh, b.de, b.du},
                    [&](auto v) {
                      launch({b.parts, lanes_for(a.width / v), in_scratch ? bytes : 0, stream},
                             LoopUpdateBackward<T, v>{b, in_scratch});
                    });
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
