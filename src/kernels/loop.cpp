#include "kernels/loop.h"

#include "kernels/cpu/loop.h"
#include "kernels/cpu/rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"
#include "kernels/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The row kernels want one floating type for everything, on the CPU.
bool rows_apply_to_all(const at::Tensor& first, std::initializer_list<const at::Tensor*> others) {
  return rows_apply(first) && std::all_of(others.begin(), others.end(), [&](const at::Tensor* t) {
           return t->device().is_cpu() && t->scalar_type() == first.scalar_type();
         });
}

struct Rows {
  int64_t count, width, parts;
  explicit Rows(const at::Tensor& t)
      : count(t.numel() / std::max<int64_t>(t.size(-1), 1)), width(t.size(-1)), parts(row_parts(count, width)) {}
};

// Gives a weight's gradient to its buffer, or back to autograd where there is none.
at::Tensor delivered(const at::Tensor& gradient, const c10::IValue& buffer) {
  const at::Tensor& sink = buffer.toTensor();
  if (!sink.defined()) return gradient;
  at::Tensor(sink).add_(gradient);
  return {};
}

// Sums by part, added in order.
at::Tensor total(const at::Tensor& by_part) { return by_part.size(0) == 1 ? by_part.select(0, 0) : by_part.sum(0); }

struct LoopNorm : torch::autograd::Function<LoopNorm> {
  static Variable forward(AutogradContext* ctx, const Variable& h_, const at::Tensor& signal, const Variable& e_,
                          const Variable& w, const GradientBuffer& grad) {
    const PartScope scope(Part::elementwise);
    const at::Tensor h = h_.contiguous();
    const at::Tensor e = e_.contiguous();
    const Rows rows(h);
    at::Tensor y = at::empty_like(h);
    at::Tensor rstd = at::empty({rows.count}, h.options());
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "loop_norm", [&] {
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* sp = signal.const_data_ptr<scalar_t>();
      const auto* ep = e.const_data_ptr<scalar_t>();
      const auto* wp = w.const_data_ptr<scalar_t>();
      auto* yp = y.mutable_data_ptr<scalar_t>();
      auto* rp = rstd.mutable_data_ptr<scalar_t>();
      for_row_parts(rows.count, rows.parts, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          rp[r] = cpu::loop_norm_row<scalar_t>(hp + from, sp, ep + from, wp, rows.width,
                                               static_cast<scalar_t>(rms_norm_eps), yp + from);
        }
      });
    });
    ctx->save_for_backward({h, signal, e, w, rstd});
    ctx->saved_data["grad"] = grad.tensor;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::elementwise);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& h = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    const Rows rows(h);
    at::Tensor ds = at::empty_like(h);
    at::Tensor dw = at::zeros({rows.parts, rows.width}, h.options());
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "loop_norm_backward", [&] {
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* sp = saved[1].const_data_ptr<scalar_t>();
      const auto* ep = saved[2].const_data_ptr<scalar_t>();
      const auto* wp = saved[3].const_data_ptr<scalar_t>();
      const auto* rp = saved[4].const_data_ptr<scalar_t>();
      const auto* gp = dy.const_data_ptr<scalar_t>();
      auto* dsp = ds.mutable_data_ptr<scalar_t>();
      auto* dwp = dw.mutable_data_ptr<scalar_t>();
      for_row_parts(rows.count, rows.parts, [&](int64_t part, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          cpu::loop_norm_backward_row<scalar_t>(hp + from, sp, ep + from, wp, gp + from, rp[r], rows.width, dsp + from,
                                                dwp + part * rows.width);
        }
      });
    });
    return {ds, at::Tensor(), ds, delivered(total(dw), ctx->saved_data["grad"]), at::Tensor()};
  }
};

struct Injection : torch::autograd::Function<Injection> {
  static Variable forward(AutogradContext* ctx, const Variable& h_, const Variable& e_, const Variable& u_,
                          const Variable& lora_, const Variable& log_a, const Variable& log_dt, const Variable& b,
                          const GradientBuffer& grad_a, const GradientBuffer& grad_dt, const GradientBuffer& grad_b) {
    const PartScope scope(Part::elementwise);
    const at::Tensor h = h_.contiguous();
    const at::Tensor e = e_.contiguous();
    const at::Tensor u = u_.contiguous();
    const at::Tensor lora = lora_.contiguous();
    const at::Tensor decay = injection_decay(log_a, log_dt);
    const Rows rows(h);
    at::Tensor y = at::empty_like(h);
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "injection", [&] {
      const auto* ap = decay.const_data_ptr<scalar_t>();
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* bp = b.const_data_ptr<scalar_t>();
      const auto* ep = e.const_data_ptr<scalar_t>();
      const auto* up = u.const_data_ptr<scalar_t>();
      const auto* lp = lora.const_data_ptr<scalar_t>();
      auto* yp = y.mutable_data_ptr<scalar_t>();
      for_row_parts(rows.count, rows.parts, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          cpu::injection_row<scalar_t>(ap, hp + from, bp, ep + from, up + from, lp + from, rows.width, yp + from);
        }
      });
    });
    ctx->save_for_backward({h, e, log_a, log_dt, b});
    ctx->saved_data["log_a"] = grad_a.tensor;
    ctx->saved_data["log_dt"] = grad_dt.tensor;
    ctx->saved_data["b"] = grad_b.tensor;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::elementwise);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& h = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    const at::Tensor decay = injection_decay(saved[2], saved[3]);
    const Rows rows(h);
    at::Tensor dh = at::empty_like(h);
    at::Tensor de = at::empty_like(h);
    at::Tensor sums = at::zeros({rows.parts, 2, rows.width}, h.options());  // of the gradients of A and B
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "injection_backward", [&] {
      const auto* ap = decay.const_data_ptr<scalar_t>();
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* bp = saved[4].const_data_ptr<scalar_t>();
      const auto* ep = saved[1].const_data_ptr<scalar_t>();
      const auto* gp = dy.const_data_ptr<scalar_t>();
      auto* dhp = dh.mutable_data_ptr<scalar_t>();
      auto* dep = de.mutable_data_ptr<scalar_t>();
      auto* sp = sums.mutable_data_ptr<scalar_t>();
      for_row_parts(rows.count, rows.parts, [&](int64_t part, int64_t begin, int64_t end) {
        scalar_t* const da = sp + part * 2 * rows.width;
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          cpu::injection_backward_row<scalar_t>(ap, hp + from, bp, ep + from, gp + from, rows.width, dhp + from,
                                                dep + from, da, da + rows.width);
        }
      });
    });
    const at::Tensor both = total(sums);
    const at::Tensor dx = both.select(0, 0) * injection_slope(saved[2], saved[3]);
    auto& data = ctx->saved_data;
    return {dh,
            de,
            dy,
            dy,
            delivered(dx, data["log_a"]),
            delivered(dx.sum().view(saved[3].sizes()), data["log_dt"]),
            delivered(both.select(0, 1), data["b"]),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

// One position's halting: what halting_weight does, and its derivative.
template <class T>
struct Halting {
  T p, cumulative;
  bool halted, last;
  Halting(T probability, T before, bool halted_before, T threshold)
      : p(probability), cumulative(before), halted(halted_before), last(before + probability >= threshold) {}

  T weight() const { return halted ? T(0) : last ? std::max(T(1) - cumulative, T(0)) : p; }
  T next() const { return halted ? cumulative : cumulative + p; }
  // The gradient of p from those of the weight and of the next cumulative sum; adds the weight's to that of
  // `cumulative`.
  T backward(T dweight, T& dcumulative) const {
    if (halted) return T(0);
    const T dp = last ? dcumulative : dcumulative + dweight;
    if (last && T(1) - cumulative >= T(0)) dcumulative -= dweight;
    return dp;
  }
};

struct Act : torch::autograd::Function<Act> {
  static variable_list forward(AutogradContext* ctx, const Variable& h_, const Variable& out_,
                               const Variable& cumulative_, const at::Tensor& halted_, const Variable& halt,
                               const Variable& bias, const GradientBuffer& grad_halt, const GradientBuffer& grad_bias,
                               double threshold) {
    const PartScope scope(Part::elementwise);
    const at::Tensor h = h_.contiguous();
    const at::Tensor out = out_.contiguous();
    const at::Tensor cumulative = cumulative_.contiguous();
    const at::Tensor halted = halted_.contiguous();
    const Rows rows(h);
    at::Tensor sum = at::empty_like(h);
    at::Tensor p = at::empty_like(cumulative);
    at::Tensor weight = at::empty_like(cumulative);
    at::Tensor next = at::empty_like(cumulative);
    at::Tensor next_halted = at::empty_like(halted);
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "act_step", [&] {
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* op = out.const_data_ptr<scalar_t>();
      const auto* cp = cumulative.const_data_ptr<scalar_t>();
      const auto* was = halted.const_data_ptr<bool>();
      const auto* kp = halt.const_data_ptr<scalar_t>();
      const scalar_t offset = *bias.const_data_ptr<scalar_t>();
      const auto bound = static_cast<scalar_t>(threshold);
      auto* sp = sum.mutable_data_ptr<scalar_t>();
      auto* pp = p.mutable_data_ptr<scalar_t>();
      auto* wp = weight.mutable_data_ptr<scalar_t>();
      auto* np = next.mutable_data_ptr<scalar_t>();
      auto* is = next_halted.mutable_data_ptr<bool>();
      for_row_parts(rows.count, rows.parts, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          const scalar_t logit = cpu::dot_row<scalar_t>(hp + from, kp, rows.width) + offset;
          pp[r] = scalar_t(1) / (scalar_t(1) + std::exp(-logit));
          const Halting<scalar_t> halting(pp[r], cp[r], was[r], bound);
          wp[r] = halting.weight();
          np[r] = halting.next();
          is[r] = was[r] || np[r] >= bound;
          cpu::act_row<scalar_t>(op + from, wp[r], hp + from, rows.width, sp + from);
        }
      });
    });
    ctx->save_for_backward({h, cumulative, halted, halt, p, weight});
    ctx->saved_data["threshold"] = threshold;
    ctx->saved_data["halt"] = grad_halt.tensor;
    ctx->saved_data["bias"] = grad_bias.tensor;
    ctx->mark_non_differentiable({p, weight, next_halted});
    return {sum, next, next_halted, p, weight};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::elementwise);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& h = saved[0];
    const at::Tensor& halt = saved[3];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dcumulative = grads[1].contiguous().clone();
    const Rows rows(h);
    at::Tensor dh = at::empty_like(h);
    at::Tensor sums = at::zeros({rows.parts, rows.width + 1}, h.options());  // of the gradients of halt and bias
    AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "act_step_backward", [&] {
      const auto* hp = h.const_data_ptr<scalar_t>();
      const auto* cp = saved[1].const_data_ptr<scalar_t>();
      const auto* was = saved[2].const_data_ptr<bool>();
      const auto* kp = halt.const_data_ptr<scalar_t>();
      const auto* pp = saved[4].const_data_ptr<scalar_t>();
      const auto* wp = saved[5].const_data_ptr<scalar_t>();
      const auto* gp = dy.const_data_ptr<scalar_t>();
      const auto bound = static_cast<scalar_t>(ctx->saved_data["threshold"].toDouble());
      auto* dcp = dcumulative.mutable_data_ptr<scalar_t>();
      auto* dhp = dh.mutable_data_ptr<scalar_t>();
      auto* sp = sums.mutable_data_ptr<scalar_t>();
      for_row_parts(rows.count, rows.parts, [&](int64_t part, int64_t begin, int64_t end) {
        scalar_t* const dhalt = sp + part * (rows.width + 1);
        for (int64_t r = begin; r < end; ++r) {
          const int64_t from = r * rows.width;
          const Halting<scalar_t> halting(pp[r], cp[r], was[r], bound);
          const scalar_t dweight = cpu::dot_row<scalar_t>(gp + from, hp + from, rows.width);
          const scalar_t dlogit = halting.backward(dweight, dcp[r]) * (scalar_t(1) - pp[r]) * pp[r];
          dhalt[rows.width] += dlogit;
          cpu::act_backward_row<scalar_t>(wp[r], gp + from, dlogit, kp, hp + from, rows.width, dhp + from, dhalt);
        }
      });
    });
    const at::Tensor both = total(sums);
    auto& data = ctx->saved_data;
    return {dh,
            dy,
            dcumulative,
            at::Tensor(),
            delivered(both.narrow(0, 0, rows.width).view(halt.sizes()), data["halt"]),
            delivered(both.narrow(0, rows.width, 1), data["bias"]),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor loop_signal(int64_t t, int64_t dim, const at::TensorOptions& options) {
  const auto wide = at::TensorOptions(accumulate_type(c10::typeMetaToScalarType(options.dtype())));
  const int64_t channels = dim / 8;
  at::Tensor signal = at::zeros({dim}, wide);
  if (channels > 0) {
    const at::Tensor exponent = at::arange(0, channels, 2, wide) / static_cast<double>(channels);
    const at::Tensor angle = at::reciprocal(at::pow(at::Scalar(10000.0), exponent)) * static_cast<double>(t);
    signal.narrow(0, 0, channels).copy_(at::cat({angle.sin(), angle.cos()}).narrow(0, 0, channels));
  }
  return signal.to(options.device());
}

LoopSignals::LoopSignals(int64_t dim, int64_t loops, const at::TensorOptions& options) : dim_(dim), options_(options) {
  if (loops > 0) (void)at(loops - 1);
}

at::Tensor LoopSignals::at(int64_t t) {
  while (static_cast<int64_t>(rows_.size()) <= t) {
    rows_.push_back(loop_signal(static_cast<int64_t>(rows_.size()), dim_, options_));
  }
  return rows_[static_cast<size_t>(t)];
}

at::Tensor loop_norm_reference(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e,
                               const at::Tensor& weight) {
  const auto type = accumulate_type(h.scalar_type());
  return rms_norm_reference((h.to(type) + signal + e.to(type)).to(h.scalar_type()), weight);
}

at::Tensor loop_norm(const at::Tensor& h, const at::Tensor& signal, const at::Tensor& e, const Weight& stored) {
  const Weight weight = in_type(stored, h.scalar_type());
  if (cuda::applies(h, weight)) return cuda::loop_norm(h, signal, e, weight);
  if (!rows_apply_to_all(h, {&signal, &e, &weight.value})) return loop_norm_reference(h, signal, e, weight.value);
  return LoopNorm::apply(h, signal, e, weight.value, GradientBuffer{weight.grad});
}

at::Tensor injection_decay(const at::Tensor& log_a, const at::Tensor& log_dt) {
  const auto type = accumulate_type(log_a.scalar_type());
  return (log_dt.to(type) + log_a.to(type)).clamp(decay_low, decay_high).exp().neg().exp();
}

at::Tensor injection_slope(const at::Tensor& log_a, const at::Tensor& log_dt) {
  const auto type = accumulate_type(log_a.scalar_type());
  const at::Tensor x = log_dt.to(type) + log_a.to(type);
  const at::Tensor rate = x.clamp(decay_low, decay_high).exp();
  return (rate * rate.neg().exp()).neg() * x.ge(decay_low).logical_and(x.le(decay_high));
}

at::Tensor injection_reference(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& lora,
                               const at::Tensor& log_a, const at::Tensor& log_dt, const at::Tensor& b) {
  const auto type = accumulate_type(h.scalar_type());
  return (injection_decay(log_a, log_dt) * h.to(type) + b.to(type) * e.to(type) + u.to(type) + lora.to(type))
      .to(h.scalar_type());
}

at::Tensor injection(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& lora,
                     const Weight& stored_log_a, const Weight& stored_log_dt, const Weight& stored_b) {
  const auto type = h.scalar_type();
  const Weight log_a = in_type(stored_log_a, type), log_dt = in_type(stored_log_dt, type), b = in_type(stored_b, type);
  if (!rows_apply_to_all(h, {&e, &u, &lora, &log_a.value, &log_dt.value, &b.value})) {
    return injection_reference(h, e, u, lora, log_a.value, log_dt.value, b.value);
  }
  return Injection::apply(h, e, u, lora, log_a.value, log_dt.value, b.value, GradientBuffer{log_a.grad},
                          GradientBuffer{log_dt.grad}, GradientBuffer{b.grad});
}

at::Tensor halting_weight(const at::Tensor& p, double threshold, HaltingState& state) {
  const at::Tensor remainder = (1.0 - state.cumulative).clamp_min(0);
  const at::Tensor last = (state.cumulative + p).ge(threshold);
  const at::Tensor running = state.halted.logical_not().to(p.scalar_type());
  const at::Tensor weight = at::where(last, remainder, p) * running;
  state.cumulative = state.cumulative + p * running;
  state.halted = state.halted.logical_or(state.cumulative.ge(threshold));
  return weight;
}

ActStep act_step_reference(const at::Tensor& h, const at::Tensor& out, HaltingState& state, const at::Tensor& halt,
                           const at::Tensor& bias, double threshold) {
  const at::Tensor wide = h.to(out.scalar_type());
  const at::Tensor p =
      (at::matmul(wide, halt.to(out.scalar_type()).t()).squeeze(-1) + bias.to(out.scalar_type())).sigmoid();
  const at::Tensor weight = halting_weight(p, threshold, state);
  return {out + weight.unsqueeze(-1) * wide, p, weight};
}

ActStep act_step(const at::Tensor& h, const at::Tensor& out, HaltingState& state, const Weight& stored_halt,
                 const Weight& stored_bias, double threshold) {
  const Weight halt = in_type(stored_halt, h.scalar_type()), bias = in_type(stored_bias, h.scalar_type());
  if (!rows_apply_to_all(h, {&out, &state.cumulative, &halt.value, &bias.value})) {
    return act_step_reference(h, out, state, halt.value, bias.value, threshold);
  }
  const auto r = Act::apply(h, out, state.cumulative, state.halted, halt.value, bias.value, GradientBuffer{halt.grad},
                            GradientBuffer{bias.grad}, threshold);
  state = {r[1], r[2]};
  return {r[0], r[3], r[4]};
}

LoopStep loop_update_reference(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                               const at::Tensor& out, HaltingState& halting, const LoopWeights& w, double threshold) {
  const at::Tensor lora = at::matmul(low, w.lora.value);
  const at::Tensor state = injection_reference(h, e, u, lora, w.log_a.value, w.log_dt.value, w.b.value);
  return {state, act_step_reference(state, out, halting, w.halt.value, w.bias.value, threshold)};
}

LoopStep loop_update(const at::Tensor& h, const at::Tensor& e, const at::Tensor& u, const at::Tensor& low,
                     const at::Tensor& out, HaltingState& halting, const LoopWeights& w, double threshold) {
  const auto type = h.scalar_type();
  const auto same = [type](const Weight& weight) { return weight.value.scalar_type() == type; };
  if (cuda::applies(h) && same(w.lora) && same(w.log_a) && same(w.halt) && out.scalar_type() == accumulate_type(type)) {
    return cuda::loop_update(h, e, u, low, out, halting, w, threshold);
  }
  const at::Tensor lora = at::matmul(low, of_type(w.lora.value, u.scalar_type()));
  const at::Tensor state = injection(h, e, u, lora, w.log_a, w.log_dt, w.b);
  return {state, act_step(state, out, halting, w.halt, w.bias, threshold)};
}

}  // namespace mythos
