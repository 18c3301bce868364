#include "kernels/cuda/swiglu.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

template <class T, int V>
struct SwigluForward {
  SwigluArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    const T* const gate = static_cast<const T*>(a.joined) + row * 2 * a.width;
    T* const act = static_cast<T*>(a.act) + row * a.width;
    team.each([&](int lane) {
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        auto y = load<V>(gate + i);
        const auto up = load<V>(gate + a.width + i);
        for (int j = 0; j < V; ++j) y[j] = y[j] * sigmoid(y[j]) * up[j];
        store(act + i, y);
      });
    });
  }
};

template <class T, int V>
struct SwigluBackward {
  SwigluBackwardArgs b;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const T* const gate = static_cast<const T*>(b.joined) + row * 2 * b.width;
    T* const dgate = static_cast<T*>(b.djoined) + row * 2 * b.width;
    const A scale = b.scale == nullptr ? A(1) : static_cast<const A*>(b.scale)[row];
    const auto columns = [&](int lane) {
      A dot = 0;
      for_columns<V>(team, lane, b.width, [&](int64_t i) {
        const auto g = load<V>(gate + i);
        const auto up = load<V>(gate + b.width + i);
        const auto dy = load<V>(static_cast<const T*>(b.dy) + row * b.width + i);
        Values<A, V> act, dg, dup;
        for (int j = 0; j < V; ++j) {
          const A s = sigmoid(g[j]);
          const A silu = g[j] * s;
          const A y = silu * up[j];
          const A d = dy[j] * scale;
          dot += dy[j] * y;
          act[j] = y * scale;
          dg[j] = d * up[j] * s * (A(1) + g[j] * (A(1) - s));
          dup[j] = d * silu;
        }
        store(static_cast<T*>(b.act) + row * b.width + i, act);
        store(dgate + i, dg);
        store(dgate + b.width + i, dup);
      });
      return dot;
    };
    if (b.dscale == nullptr) {
      team.each([&](int lane) { columns(lane); });
      return;
    }
    const A dot = team.sum<A>(columns);
    team.each([&](int lane) {
      if (lane == 0) static_cast<A*>(b.dscale)[row] = dot;
    });
  }
};

void swiglu_forward(const SwigluArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width}, {a.joined, a.act}, [&](auto v) {
      launch({a.rows, lanes_for(a.width / v), 0, stream}, SwigluForward<T, v>{a});
    });
  });
}

void swiglu_backward(const SwigluBackwardArgs& b, void* stream) {
  with_type(b.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({b.width}, {b.joined, b.dy, b.act, b.djoined}, [&](auto v) {
      launch({b.rows, lanes_for(b.width / v), 0, stream}, SwigluBackward<T, v>{b});
    });
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
