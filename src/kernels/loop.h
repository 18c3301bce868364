// The elementwise work of one run of the looped block: the norm before it, the stable linear injection after it
// (Parcae's LTI update), and adaptive computation time (Graves, 2016), which weighs the loops' states.
#pragma once

#include "kernels/weight.h"

namespace mythos {

/// The loop signal: first D/8 channels [sin(t f) | cos(t f)], f_i = 10000^(-2i/(D/8)), zero elsewhere. [D], in fp32 at
/// least.
at::Tensor loop_signal(int64_t t, int64_t dim, const at::TensorOptions& options);

/// The signals of all loops, made once. Grows with the loops asked for.
class LoopSignals {
 public:
  LoopSignals() = default;
  LoopSignals(int64_t dim, int64_t loops, const at::TensorOptions& options);
  /// The signal of loop t, [D].
  at::Tensor at(int64_t t);

 private:
  int64_t dim_ = 0;
  at::TensorOptions options_;
  std::vector<at::Tensor> rows_;
};

/// rms_norm(h + signal + e) * weight, computed in fp32 at least, returned in h's dtype. h, e: [..., D]; signal [D],
/// which gets no gradient; weight [D]. Keeps h, e and one number a row.
at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& weight);
at::Tensor loop_norm_reference(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e,
                               const at::Tensor& weight);

inline constexpr double decay_low = -16, decay_high = 20;

/// A = exp(-exp(clamp(log_dt + log_A, -16, 20))), in fp32 at least: 0 <= A < 1 always. (At -20, the reference's bound,
/// A would round to 1 in fp32.)
at::Tensor injection_decay(const at::Tensor& log_a, const at::Tensor& log_dt);

/// dA / d(log_dt + log_A), in fp32 at least: no gradient outside the clamp's bounds.
at::Tensor injection_slope(const at::Tensor& log_a, const at::Tensor& log_dt);

/// A h + B e + u + lora with A = injection_decay(log_a, log_dt), computed in fp32 at least, returned in h's dtype.
/// h, e, u, lora: [..., D]; log_a, b: [D]; log_dt has one element. Keeps h and e; u and lora get the same gradient
/// tensor, which is that of the result.
at::Tensor injection(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& lora,
                     const Weight& log_a, const Weight& log_dt, const Weight& b);
at::Tensor injection_reference(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& lora,
                               const at::Tensor& log_a, const at::Tensor& log_dt, const at::Tensor& b);

/// What ACT carries from loop to loop.
struct HaltingState {
  at::Tensor cumulative;  ///< [B, T], fp32 at least
  at::Tensor halted;      ///< bool [B, T]
};

/// One ACT step: from p [B, T] the weight of this loop's state; updates the state. Fields: w = p, or the remainder
/// max(0, 1 - cumulative) where cumulative + p >= threshold; 0 where halted before.
at::Tensor halting_weight(const at::Tensor& p, double threshold, HaltingState& state);

struct ActStep {
  at::Tensor out;     ///< out + weight * h, [B, T, D]
  at::Tensor p;       ///< halting probability sigmoid(h . halt + bias), [B, T]; to look at, without gradient
  at::Tensor weight;  ///< halting_weight's, [B, T]; likewise
};

/// ACT's part of one loop. h [B, T, D]; out [B, T, D] in fp32 at least; halt [1, D], bias [1]; updates the state. The
/// gradient goes through the weights: p, and the remainder's 1 - cumulative to the loops before. Keeps h and numbers by
/// position.
ActStep act_step(const at::Tensor& h, const at::Tensor& out, HaltingState& state, const Weight& halt,
                 const Weight& bias, double threshold);
ActStep act_step_reference(const at::Tensor& h, const at::Tensor& out, HaltingState& state, const at::Tensor& halt,
                           const at::Tensor& bias, double threshold);

struct LoopWeights {
  Weight lora;              ///< [R, D], the second factor of the low-rank update
  Weight log_a, log_dt, b;  ///< of injection()
  Weight halt, bias;        ///< of act_step()
};

struct LoopStep {
  at::Tensor state;  ///< [B, T, D]
  ActStep act;
};

/// The end of a loop: the new state injection(h, e, u, low @ lora), and act_step() of it; in one pass where the device
/// has a kernel. low: [B, T, R]; the rest as there. Keeps h, e, low, the new state, and numbers by position; u is not
/// kept.
LoopStep loop_update(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                     const at::Tensor& out, HaltingState& halting, const LoopWeights& weights, double threshold);
LoopStep loop_update_reference(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                               const at::Tensor& out, HaltingState& halting, const LoopWeights& weights,
                               double threshold);

}  // namespace mythos
