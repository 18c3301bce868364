#include "kernels/cuda/heads.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

// Pairs are adjacent, so a lane takes two numbers at least; where rows are not aligned it takes them one by one.
template <int V>
inline constexpr int step = V > 1 ? V : 2;

template <int V, class T>
MYTHOS_INLINE Values<Accumulate<T>, step<V>> load_pairs(const T* p) {
  if constexpr (V > 1) {
    return load<V>(p);
  } else {
    return {{wide(p[0]), wide(p[1])}};
  }
}
template <int V, class T, class A>
MYTHOS_INLINE void store_pairs(T* p, const Values<A, step<V>>& x) {
  if constexpr (V > 1) {
    store(p, x);
  } else {
    p[0] = narrow<T>(x[0]);
    p[1] = narrow<T>(x[1]);
  }
}

// Turns the pairs that begin at an even column.
template <class A, int N>
MYTHOS_INLINE void turn(Values<A, N>& x, const float* cos, const float* sin, A sign) {
  for (int j = 0; j < N; j += 2) {
    const A c = static_cast<A>(cos[j / 2]), s = sign * static_cast<A>(sin[j / 2]);
    const A real = x[j] * c - x[j + 1] * s;
    x[j + 1] = x[j] * s + x[j + 1] * c;
    x[j] = real;
  }
}

template <class T>
MYTHOS_INLINE const T* row_of(const Strided& t, int64_t b, int64_t row) {
  return static_cast<const T*>(t.data) + b * t.batch + row * t.row;
}

// f(head, column) for the columns of all heads, `size` a head, V neighbours each time.
template <int V, class F>
MYTHOS_INLINE void for_heads(const Team& team, int lane, int64_t heads, int64_t size, const F& f) {
  const int width = static_cast<int>(size), all = static_cast<int>(heads) * width;
  for (int i = lane * V; i < all; i += team.size() * V) f(i / width, i % width);
}

template <class T, int V>
struct Rotate {
  RotateArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const int64_t b = row / a.count, t = row % a.count, half = a.width / 2;
    const T* const x = row_of<T>(a.x, b, t);
    T* const out = static_cast<T*>(a.out) + row * a.heads * a.width;
    team.each([&](int lane) {
      for_heads<step<V>>(team, lane, a.heads, a.width, [&](int h, int i) {
        auto pairs = load_pairs<V>(x + h * a.x.head + i);
        turn(pairs, a.cos + t * half + i / 2, a.sin + t * half + i / 2, a.back ? A(-1) : A(1));
        store_pairs<V>(out + h * a.width + i, pairs);
      });
    });
  }
};

template <class T, int V>
struct HeadsForward {
  HeadsArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const int64_t b = row / a.count, t = row % a.count;
    const T* const q_nope = row_of<T>(a.q_up, b, t);
    const T* const q_rope = q_nope + a.heads * a.nope;
    const T* const kv = row_of<T>(a.kv, b, t);
    const T* const k_rope = row_of<T>(a.k_rope, b, t);
    T* const q = static_cast<T*>(a.q) + row * a.heads * a.key_width;
    T* const k = static_cast<T*>(a.k) + row * a.heads * a.key_width;
    T* const v = static_cast<T*>(a.v) + row * a.heads * a.value_width;
    const float* const cos = a.cos + t * (a.rope / 2);
    const float* const sin = a.sin + t * (a.rope / 2);
    const int64_t used = a.nope + a.rope, kv_width = a.nope + a.value;
    team.each([&](int lane) {
      for_heads<V>(team, lane, a.heads, a.nope,
                   [&](int h, int i) { store(q + h * a.key_width + i, load<V>(q_nope + h * a.nope + i)); });
      for_heads<step<V>>(team, lane, a.heads, a.rope, [&](int h, int i) {
        auto pairs = load_pairs<V>(q_rope + h * a.rope + i);
        turn(pairs, cos + i / 2, sin + i / 2, A(1));
        store_pairs<V>(q + h * a.key_width + a.nope + i, pairs);
      });
      for_heads<V>(team, lane, a.heads, kv_width, [&](int h, int i) {
        T* const to = i < a.nope ? k + h * a.key_width + i : v + h * a.value_width + (i - a.nope);
        store(to, load<V>(kv + h * kv_width + i));
      });
      for_heads<V>(team, lane, a.heads, a.rope,
                   [&](int h, int i) { store(k + h * a.key_width + a.nope + i, load<V>(k_rope + i)); });
      const Values<A, V> zeros{};
      for_heads<V>(team, lane, a.heads, a.key_width - used, [&](int h, int i) {
        store(q + h * a.key_width + used + i, zeros);
        store(k + h * a.key_width + used + i, zeros);
      });
      for_heads<V>(team, lane, a.heads, a.value_width - a.value,
                   [&](int h, int i) { store(v + h * a.value_width + a.value + i, zeros); });
    });
  }
};

template <class T, int V>
struct HeadsBackward {
  HeadsBackwardArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    using A = Accumulate<T>;
    const int64_t b = row / a.count, t = row % a.count;
    const T* const dq = row_of<T>(a.dq, b, t);
    const T* const dk = row_of<T>(a.dk, b, t);
    const T* const dv = row_of<T>(a.dv, b, t);
    T* const q_nope = static_cast<T*>(a.dq_up) + row * a.heads * (a.nope + a.rope);
    T* const q_rope = q_nope + a.heads * a.nope;
    const int64_t kv_width = a.nope + a.value;
    T* const kv = static_cast<T*>(a.dkv) + row * a.heads * kv_width;
    const float* const cos = a.cos + t * (a.rope / 2);
    const float* const sin = a.sin + t * (a.rope / 2);
    team.each([&](int lane) {
      for_heads<V>(team, lane, a.heads, a.nope,
                   [&](int h, int i) { store(q_nope + h * a.nope + i, load<V>(dq + h * a.dq.head + i)); });
      for_heads<step<V>>(team, lane, a.heads, a.rope, [&](int h, int i) {
        auto pairs = load_pairs<V>(dq + h * a.dq.head + a.nope + i);
        turn(pairs, cos + i / 2, sin + i / 2, A(-1));
        store_pairs<V>(q_rope + h * a.rope + i, pairs);
      });
      for_heads<V>(team, lane, a.heads, kv_width, [&](int h, int i) {
        const T* const from = i < a.nope ? dk + h * a.dk.head + i : dv + h * a.dv.head + (i - a.nope);
        store(kv + h * kv_width + i, load<V>(from));
      });
      for_columns<V>(team, lane, a.rope, [&](int64_t i) {
        Values<A, V> sum{};
        for (int64_t h = 0; h < a.heads; ++h) {
          const auto more = load<V>(dk + h * a.dk.head + a.nope + i);
          for (int j = 0; j < V; ++j) sum[j] += more[j];
        }
        store(static_cast<T*>(a.dk_rope) + row * a.rope + i, sum);
      });
    });
  }
};

void rotate(const RotateArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width, a.x.batch, a.x.row, a.x.head}, {a.x.data, a.out}, [&](auto v) {
      launch({a.batch * a.count, lanes_for(a.heads * a.width / step<v>), 0, stream}, Rotate<T, v>{a});
    });
  });
}

void heads_forward(const HeadsArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>(
        {a.nope, a.rope, a.value, a.key_width, a.value_width, a.q_up.batch, a.q_up.row, a.kv.batch, a.kv.row,
         a.k_rope.batch, a.k_rope.row},
        {a.q_up.data, a.kv.data, a.k_rope.data, a.q, a.k, a.v}, [&](auto v) {
          launch({a.batch * a.count, lanes_for(a.heads * (a.nope + a.value) / v), 0, stream}, HeadsForward<T, v>{a});
        });
  });
}

void heads_backward(const HeadsBackwardArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>(
        {a.nope, a.rope, a.value, a.dq.batch, a.dq.row, a.dq.head, a.dk.batch, a.dk.row, a.dk.head, a.dv.batch,
         a.dv.row, a.dv.head},
        {a.dq.data, a.dk.data, a.dv.data, a.dq_up, a.dkv, a.dk_rope}, [&](auto v) {
          launch({a.batch * a.count, lanes_for(a.heads * (a.nope + a.value) / v), 0, stream}, HeadsBackward<T, v>{a});
        });
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
