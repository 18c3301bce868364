#include "kernels/cuda/moe.h"

#include "kernels/cuda/team.h"

namespace mythos::cuda::MYTHOS_KERNELS {

// A lane for every token: tokens have few experts to look at.
template <class A>
struct RouteForward {
  RouteArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    team.each([&](int lane) {
      const int64_t token = piece * team.size() + lane;
      if (token >= a.tokens) return;
      const A* const logits = static_cast<const A*>(a.logits) + token * a.experts;
      const A* const bias = static_cast<const A*>(a.bias);
      int64_t* const choice = a.choice + token * a.chosen;
      A* const weights = static_cast<A*>(a.weights) + token * a.chosen;
      for (int64_t j = 0; j < a.chosen; ++j) {
        int64_t best = -1;
        A top = 0;
        for (int64_t e = 0; e < a.experts; ++e) {
          bool taken = false;
          for (int64_t i = 0; i < j; ++i) taken = taken || choice[i] == e;
          if (taken) continue;
          const A biased = logits[e] + (bias != nullptr ? bias[e] : A(0));
          if (best < 0 || biased > top) best = e, top = biased;  // of NaNs the first: a place that exists
        }
        choice[j] = best;
      }
      A largest = logits[choice[0]];
      for (int64_t j = 1; j < a.chosen; ++j) largest = larger(logits[choice[j]], largest);
      A sum = 0;
      for (int64_t j = 0; j < a.chosen; ++j) sum += weights[j] = exponential(logits[choice[j]] - largest);
      for (int64_t j = 0; j < a.chosen; ++j) weights[j] /= sum;
    });
  }
};

template <class A>
struct RouteBackward {
  RouteBackwardArgs b;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    const RouteArgs& a = b.forward;
    team.each([&](int lane) {
      const int64_t token = piece * team.size() + lane;
      if (token >= a.tokens) return;
      const int64_t* const choice = a.choice + token * a.chosen;
      const A* const weights = static_cast<const A*>(a.weights) + token * a.chosen;
      const A* const dweights = static_cast<const A*>(b.dweights) + token * a.chosen;
      A* const dlogits = static_cast<A*>(b.dlogits) + token * a.experts;
      A mean = 0;
      for (int64_t j = 0; j < a.chosen; ++j) mean += weights[j] * dweights[j];
      for (int64_t e = 0; e < a.experts; ++e) dlogits[e] = 0;
      for (int64_t j = 0; j < a.chosen; ++j) dlogits[choice[j]] = weights[j] * (dweights[j] - mean);
    });
  }
};

// Grouping is a counting sort by pieces of 256 choices. A lane looks after an expert (or several) and reads the piece's
// choices in order, so that no two lanes write to one place.
MYTHOS_INLINE int64_t chunk_end(const GroupArgs& a, int64_t piece) {
  const int64_t end = (piece + 1) * group_chunk;
  return end < a.choices ? end : a.choices;
}

struct CountChoices {
  GroupArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    team.each([&](int lane) {
      const int64_t begin = piece * group_chunk, end = chunk_end(a, piece);
      for (int64_t e = lane; e < a.experts; e += team.size()) {
        int32_t count = 0;
        for (int64_t i = begin; i < end; ++i) count += a.choice[i] == e ? 1 : 0;
        a.counts[piece * a.experts + e] = count;
      }
    });
  }
};

// Counts become the place of each piece's first choice of each expert, and ends.
struct PlaceChoices {
  GroupArgs a;
  int64_t chunks;
  MYTHOS_INLINE void operator()(const Team& team, int64_t) const {
    team.each([&](int lane) {
      for (int64_t e = lane; e < a.experts; e += team.size()) {
        int32_t before = 0;
        for (int64_t c = 0; c < chunks; ++c) {
          const int32_t count = a.counts[c * a.experts + e];
          a.counts[c * a.experts + e] = before;
          before += count;
        }
        a.ends[e] = before;
      }
    });
    team.each([&](int lane) {
      if (lane != 0) return;
      for (int64_t e = 1; e < a.experts; ++e) a.ends[e] += a.ends[e - 1];
    });
  }
};

struct OrderChoices {
  GroupArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    team.each([&](int lane) {
      const int64_t begin = piece * group_chunk, end = chunk_end(a, piece);
      for (int64_t e = lane; e < a.experts; e += team.size()) {
        int32_t place = (e > 0 ? a.ends[e - 1] : 0) + a.counts[piece * a.experts + e];
        for (int64_t i = begin; i < end; ++i) {
          if (a.choice[i] != e) continue;
          a.slot[i] = place;
          a.order[place] = static_cast<int32_t>(i);
          ++place;
        }
      }
    });
  }
};

template <class T, int V>
struct GatherRows {
  GatherArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t row) const {
    team.each([&](int lane) {
      const T* const in = static_cast<const T*>(a.in) + a.order[row] / a.chosen * a.width;
      T* const out = static_cast<T*>(a.out) + row * a.width;
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        *reinterpret_cast<Packed<T, V>*>(out + i) = *reinterpret_cast<const Packed<T, V>*>(in + i);
      });
    });
  }
};

template <class T, int V>
struct CombineRows {
  CombineArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t token) const {
    using A = Accumulate<T>;
    team.each([&](int lane) {
      const int32_t* const slot = a.slot + token * a.chosen;
      const A* const weights = static_cast<const A*>(a.weights) + (a.weights != nullptr ? token * a.chosen : 0);
      for_columns<V>(team, lane, a.width, [&](int64_t i) {
        Values<A, V> sum{};
        for (const void* const more : {a.first, a.second}) {
          if (more == nullptr) continue;
          const auto x = load<V>(static_cast<const T*>(more) + token * a.width + i);
          for (int v = 0; v < V; ++v) sum[v] += x[v];
        }
        for (int64_t j = 0; j < a.chosen; ++j) {
          const A weight = a.weights != nullptr ? weights[j] : A(1);
          const auto x = load<V>(static_cast<const T*>(a.rows) + slot[j] * a.width + i);
          for (int v = 0; v < V; ++v) sum[v] += weight * x[v];
        }
        store(static_cast<T*>(a.out) + token * a.width + i, sum);
      });
    });
  }
};

inline constexpr int route_lanes = 64;

void route_forward(const RouteArgs& a, void* stream) {
  const Shape shape{(a.tokens + route_lanes - 1) / route_lanes, route_lanes, 0, stream};
  a.type == Type::f64 ? launch(shape, RouteForward<double>{a}) : launch(shape, RouteForward<float>{a});
}

void route_backward(const RouteBackwardArgs& b, void* stream) {
  const Shape shape{(b.forward.tokens + route_lanes - 1) / route_lanes, route_lanes, 0, stream};
  b.forward.type == Type::f64 ? launch(shape, RouteBackward<double>{b}) : launch(shape, RouteBackward<float>{b});
}

void group_choices(const GroupArgs& a, void* stream) {
  const int lanes = lanes_for(a.experts);
  const int64_t chunks = group_chunks(a.choices);
  launch({chunks, lanes, 0, stream}, CountChoices{a});
  launch({1, lanes, 0, stream}, PlaceChoices{a, chunks});
  launch({chunks, lanes, 0, stream}, OrderChoices{a});
}

void gather_rows(const GatherArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width}, {a.in, a.out}, [&](auto v) {
      launch({a.rows, lanes_for(a.width / v), 0, stream}, GatherRows<T, v>{a});
    });
  });
}

void combine_rows(const CombineArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    with_vectors<T>({a.width}, {a.rows, a.first, a.second, a.out}, [&](auto v) {
      launch({a.tokens, lanes_for(a.width / v), 0, stream}, CombineRows<T, v>{a});
    });
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
