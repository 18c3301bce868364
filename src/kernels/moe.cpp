#include "kernels/moe.h"

#include "kernels/cpu/rows.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"
#include "kernels/product.h"
#include "kernels/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace mythos {

Routing route(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k) {
  const at::Tensor wide = logits.to(accumulate_type(logits.scalar_type()));
  if (cuda::applies(wide)) {
    const auto [experts, weights] = cuda::route(wide, bias, top_k);
    return {experts, weights};
  }
  at::Tensor biased = wide.detach();
  if (bias.defined()) biased = biased + bias.to(wide.scalar_type());
  const at::Tensor experts = std::get<1>(biased.topk(top_k, -1, true, true));
  // softmax over all, renormalised over the chosen, is the softmax over the chosen.
  return {experts, wide.gather(-1, experts).softmax(-1)};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Which rows go to which expert: choice (n, k) is row `slot[n * K + k]` of the grouped order.
struct Groups {
  at::Tensor token;             // int64 [N*K]: the token of each grouped row
  at::Tensor slot;              // int64 [N*K]
  std::vector<int64_t> offset;  // E + 1
};

Groups group_by_expert(const at::Tensor& experts, int64_t n_experts) {
  const int64_t k = experts.size(1);
  const at::Tensor flat = experts.reshape(-1);
  Groups g;
  g.offset.assign(static_cast<size_t>(n_experts) + 1, 0);
  const at::Tensor ids = flat.cpu().contiguous();
  const auto* e = ids.const_data_ptr<int64_t>();
  const int64_t n = ids.numel();
  for (int64_t i = 0; i < n; ++i) ++g.offset[static_cast<size_t>(e[i]) + 1];
  for (size_t i = 1; i < g.offset.size(); ++i) g.offset[i] += g.offset[i - 1];
  std::vector<int64_t> next(g.offset.begin(), g.offset.end() - 1);
  g.token = at::empty({n}, at::kLong);
  g.slot = at::empty({n}, at::kLong);
  auto* token = g.token.mutable_data_ptr<int64_t>();
  auto* slot = g.slot.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t s = next[static_cast<size_t>(e[i])]++;
    slot[i] = s;
    token[s] = i / k;
  }
  g.token = g.token.to(flat.device());
  g.slot = g.slot.to(flat.device());
  return g;
}

// In how many parts threads share out a grouped product, at most `most`. What a part multiplies stays on its thread:
// one meeting of the threads instead of one or two for every expert.
int64_t parts_on(const at::Tensor& like, int64_t most) {
  return like.device().is_cpu() ? std::max<int64_t>(1, std::min<int64_t>(most, at::get_num_threads())) : 1;
}

// out[rows of e] = in[rows of e] @ weight[e] (or its transpose) for every expert. Threads share out the rows, whosever
// they are: experts differ much in how many they have.
void grouped_mm(at::Tensor& out, const at::Tensor& in, const at::Tensor& weight, bool transpose,
                const std::vector<int64_t>& offset) {
  const int64_t n = in.size(0);
  for_row_parts(n, parts_on(in, (n + 15) / 16), [&](int64_t, int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;  // of this thread
    for (int64_t e = 0; e < weight.size(0); ++e) {
      const int64_t begin = std::max(first, offset[static_cast<size_t>(e)]);
      const int64_t rows = std::min(last, offset[static_cast<size_t>(e) + 1]) - begin;
      if (rows <= 0) continue;
      const at::Tensor w = of_type(weight.select(0, e), in.scalar_type());
      multiply(out.narrow(0, begin, rows), in.narrow(0, begin, rows), transpose ? w.t() : w);
    }
  });
}

// The same for few rows, out[rows of e] = in[rows of e] @ weight[e]^T: threads share out the columns of the result, so
// that each part of a weight is read once.
void grouped_few_rows(at::Tensor& out, const at::Tensor& in, const at::Tensor& weight,
                      const std::vector<int64_t>& offset) {
  for_row_chunks(weight.size(1), weight.size(2), [&](int64_t first, int64_t last) {
    for (int64_t e = 0; e < weight.size(0); ++e) {
      const int64_t begin = offset[static_cast<size_t>(e)];
      const int64_t rows = offset[static_cast<size_t>(e) + 1] - begin;
      if (rows > 0) multiply_few_rows(out, in, weight, {begin, rows}, {first, last - first}, e);
    }
  });
}

// y[n, k] of routed_experts() before they are weighed, in grouped order, and what they were made from.
struct ExpertOutputs {
  at::Tensor joined, y;
};

ExpertOutputs run_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down, const Groups& g) {
  const at::Tensor xs = x.index_select(0, g.token);
  at::Tensor joined = at::empty({xs.size(0), gate_up.size(1)}, x.options());
  at::Tensor y = at::empty_like(xs);
  if (few_rows_apply(x, gate_up) && few_rows_apply(x, down)) {  // an expert has a row of each token at most
    grouped_few_rows(joined, xs, gate_up, g.offset);
    grouped_few_rows(y, swiglu_forward(joined), down, g.offset);
  } else {
    grouped_mm(joined, xs, gate_up, true, g.offset);
    grouped_mm(y, swiglu_forward(joined), down, true, g.offset);
  }
  return {joined, y};
}

// weight_grad[e] += left[rows of e]^T @ right[rows of e]; threads share out the rows of each gradient.
void grouped_gradient(at::Tensor& weight_grad, const at::Tensor& left, const at::Tensor& right,
                      const std::vector<int64_t>& offset) {
  const int64_t m = left.size(1);
  for_row_parts(m, parts_on(left, (m + 95) / 96), [&](int64_t, int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;  // of this thread
    const int64_t size = last - first;
    for (int64_t e = 0; e < weight_grad.size(0); ++e) {
      const int64_t begin = offset[static_cast<size_t>(e)];
      const int64_t rows = offset[static_cast<size_t>(e) + 1] - begin;
      if (rows == 0) continue;
      multiply_add(weight_grad.select(0, e).narrow(0, first, size),
                   left.narrow(0, begin, rows).narrow(1, first, size).t(), right.narrow(0, begin, rows));
    }
  });
}

// out[n] = sum_k scale[n, k] * rows[slot[n, k]] in the order of k; scale may be undefined (all ones).
at::Tensor combine(const at::Tensor& rows, const at::Tensor& slot, const at::Tensor& scale, int64_t k) {
  const int64_t n = slot.numel() / k;
  const int64_t d = rows.size(1);
  if (!rows_apply(rows)) {
    at::Tensor picked = rows.index_select(0, slot).view({n, k, d});
    if (scale.defined()) picked = picked.to(scale.scalar_type()) * scale.unsqueeze(-1);
    return picked.sum(1).to(rows.scalar_type());
  }
  at::Tensor out = at::zeros({n, d}, rows.options());
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "moe_combine", [&] {
    const auto* in = rows.const_data_ptr<scalar_t>();
    const auto* s = slot.const_data_ptr<int64_t>();
    const auto* w = scale.defined() ? scale.const_data_ptr<scalar_t>() : nullptr;
    auto* o = out.mutable_data_ptr<scalar_t>();
    for_row_parts(n, row_parts(n, k * d), [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin * k; i < end * k; ++i) {
        cpu::axpy_row<scalar_t>(w != nullptr ? w[i] : scalar_t(1), in + s[i] * d, d, o + i / k * d);
      }
    });
  });
  return out;
}

struct RoutedExperts : torch::autograd::Function<RoutedExperts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate_up,
                            const at::Tensor& down, const at::Tensor& experts, const at::Tensor& weights,
                            const GradientBuffer& gate_up_grad, const GradientBuffer& down_grad) {
    const PartScope scope(Part::experts);
    const int64_t k = experts.size(1);
    const Groups g = group_by_expert(experts, gate_up.size(0));
    const ExpertOutputs made = run_experts(x, gate_up, down, g);
    const at::Tensor w = weights.contiguous();
    // y is not kept: the gradient of the weights follows from the activations (see backward).
    ctx->save_for_backward({x, gate_up, down, w, made.joined, g.token, g.slot});
    ctx->saved_data["offset"] = g.offset;
    ctx->saved_data["gate_up_grad"] = gate_up_grad.tensor;
    ctx->saved_data["down_grad"] = down_grad.tensor;
    return combine(made.y, g.slot, w, k);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::experts);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gate_up = saved[1], &down = saved[2], &w = saved[3], &joined = saved[4];
    const at::Tensor &token = saved[5], &slot = saved[6];
    const auto offset = ctx->saved_data["offset"].toIntVector();
    at::Tensor gate_up_grad = ctx->saved_data["gate_up_grad"].toTensor();
    at::Tensor down_grad = ctx->saved_data["down_grad"].toTensor();
    const bool own_gate_up = !gate_up_grad.defined();
    const bool own_down = !down_grad.defined();
    if (own_gate_up) gate_up_grad = at::zeros_like(gate_up);
    if (own_down) down_grad = at::zeros_like(down);
    const int64_t k = w.size(1);

    const at::Tensor dy = grads[0].contiguous().index_select(0, token);
    at::Tensor dact = at::empty({dy.size(0), down.size(2)}, dy.options());
    grouped_mm(dact, dy, down, false, offset);
    // d weights[n, k] = dy . down(act) = down^T(dy) . act, so the expert's output need not be kept.
    const at::Tensor scale = at::empty({dy.size(0)}, w.options()).scatter_(0, slot, w.reshape(-1));
    const SwigluBackward b = swiglu_backward(joined, dact, scale);
    grouped_gradient(down_grad, dy, b.act, offset);
    grouped_gradient(gate_up_grad, b.djoined, x.index_select(0, token), offset);
    at::Tensor dxs = at::empty_like(dy);
    grouped_mm(dxs, b.djoined, gate_up, false, offset);
    const at::Tensor dw = b.dscale.index_select(0, slot).view_as(w);
    return {combine(dxs, slot, at::Tensor(), k),
            own_gate_up ? gate_up_grad : at::Tensor(),
            own_down ? down_grad : at::Tensor(),
            at::Tensor(),
            dw,
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor routed_experts(const at::Tensor& x, const Weight& gate_up, const Weight& down, const at::Tensor& experts,
                          const at::Tensor& weights, const std::vector<at::Tensor>& addends) {
  if (cuda::applies(x, gate_up)) {
    return cuda::routed_experts(x, gate_up, down, experts, weights, addends);
  }
  at::Tensor out = RoutedExperts::apply(x, gate_up.value, down.value, experts, weights, GradientBuffer{gate_up.grad},
                                        GradientBuffer{down.grad});
  for (const at::Tensor& more : addends) out = out + more;
  return out;
}

at::Tensor routed_experts_reference(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                                    const at::Tensor& experts, const at::Tensor& weights) {
  at::Tensor out = at::zeros_like(x);
  for (int64_t k = 0; k < experts.size(1); ++k) {
    for (int64_t e = 0; e < gate_up.size(0); ++e) {
      const at::Tensor rows = experts.select(1, k).eq(e).nonzero().squeeze(1);
      if (rows.size(0) == 0) continue;
      const at::Tensor y =
          at::linear(swiglu_reference(at::linear(x.index_select(0, rows), gate_up.select(0, e))), down.select(0, e));
      const at::Tensor scale = weights.select(1, k).index_select(0, rows).unsqueeze(1);
      out = out.index_add(0, rows, (y.to(weights.scalar_type()) * scale).to(x.scalar_type()));
    }
  }
  return out;
}

}  // namespace mythos
