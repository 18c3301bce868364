#include "kernels/cuda/adamw.h"

#include "kernels/cuda/team.h"

#include <type_traits>

namespace mythos::cuda::MYTHOS_KERNELS {

constexpr int adamw_lanes = 256;
constexpr int adamw_steps = 4;  // of a lane

struct JudgeStep {
  VerdictArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t) const {
    const double squares = team.sum<double>([&](int lane) {
      double own = 0;
      for (int64_t i = lane; i < a.parts; i += team.size()) own += a.squares[i];
      return own;
    });
    team.each([&](int lane) {
      if (lane != 0) return;
      Verdict v;
      v.loss = *a.loss;
      v.norm = root(squares);
      v.divisor = a.clip > 0 ? larger((v.norm + 1e-6) / a.clip, 1.0) : 1.0;
      v.updates = v.loss - v.loss == 0 && v.norm - v.norm == 0 ? 1 : 0;  // inf - inf is NaN
      *a.verdict = v;
    });
  }
};

template <class T, int V>
struct AdamWUpdate {
  AdamWArgs a;
  MYTHOS_INLINE void operator()(const Team& team, int64_t piece) const {
    if (a.verdict != nullptr && a.verdict->updates == 0) return;
    const T divisor = static_cast<T>(a.verdict != nullptr ? a.verdict->divisor : a.divisor);
    const T beta1 = static_cast<T>(a.beta1), beta2 = static_cast<T>(a.beta2), eps = static_cast<T>(a.eps);
    const T new1 = static_cast<T>(1 - a.beta1), new2 = static_cast<T>(1 - a.beta2);
    const T keep = static_cast<T>(a.keep), rate = static_cast<T>(a.rate), correction2 = static_cast<T>(a.correction2);
    const int64_t block = static_cast<int64_t>(adamw_lanes) * adamw_steps * V, begin = piece * block;
    const int64_t rest = a.count - begin;
    team.each([&](int lane) {
      for_columns<V>(team, lane, rest < block ? rest : block, [&](int64_t offset) {
        const int64_t i = begin + offset;
        T* const value = static_cast<T*>(a.value) + i;
        T* const first = static_cast<T*>(a.first) + i;
        T* const second = static_cast<T*>(a.second) + i;
        auto p = load<V>(value), m = load<V>(first), v = load<V>(second);
        const auto g = load<V>(static_cast<const T*>(a.gradient) + i);
        for (int j = 0; j < V; ++j) {
          const T gradient = g[j] / divisor;
          m[j] = beta1 * m[j] + new1 * gradient;
          v[j] = beta2 * v[j] + new2 * gradient * gradient;
          p[j] = p[j] * keep - rate * m[j] / (root(v[j]) / correction2 + eps);
        }
        store(value, p);
        store(first, m);
        store(second, v);
        if constexpr (std::is_same_v<T, float>) {
          if (a.copy != nullptr) store(static_cast<Bf16*>(a.copy) + i, p);
        }
      });
    });
  }
};

void judge_step(const VerdictArgs& a, void* stream) { launch({1, 512, 0, stream}, JudgeStep{a}); }

void adamw_update(const AdamWArgs& a, void* stream) {
  with_type(a.type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, Bf16>) {
      with_vectors<T>({a.count}, {a.value, a.gradient, a.first, a.second, a.copy}, [&](auto v) {
        const int64_t block = static_cast<int64_t>(adamw_lanes) * adamw_steps * v;
        launch({(a.count + block - 1) / block, adamw_lanes, 0, stream}, AdamWUpdate<T, v>{a});
      });
    }
  });
}

}  // namespace mythos::cuda::MYTHOS_KERNELS
