#include "kernels/cross_entropy.h"

#include "kernels/cpu/rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Turns a chunk of logits into their gradient (times `scale`) in place and returns the chunk's loss sum.
at::Tensor loss_and_gradient(at::Tensor& logits, const at::Tensor& targets, double scale) {
  const int64_t rows = logits.size(0);
  const int64_t v = logits.size(1);
  if (rows_apply(logits)) {
    std::vector<double> losses(static_cast<size_t>(rows), 0.0);
    AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy", [&] {
      auto* lp = logits.mutable_data_ptr<scalar_t>();
      const auto* tp = targets.const_data_ptr<int64_t>();
      for_row_parts(rows, row_parts(rows, v), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          if (tp[r] == ignored_target) {
            std::fill_n(lp + r * v, v, scalar_t(0));
          } else {
            losses[static_cast<size_t>(r)] =
                cpu::cross_entropy_row<scalar_t>(lp + r * v, v, tp[r], static_cast<scalar_t>(scale));
          }
        }
      });
    });
    double sum = 0;
    for (const double l : losses) sum += l;
    return at::scalar_tensor(sum, logits.options().dtype(at::kDouble));
  }
  const auto type = accumulate_type(logits.scalar_type());
  const at::Tensor counted = targets.ne(ignored_target);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor wide = logits.to(type);
  const at::Tensor lse = wide.logsumexp(1, true);
  const at::Tensor losses = (lse - wide.gather(1, index)).squeeze(1);
  at::Tensor gradient = (wide - lse).exp();
  gradient.scatter_add_(1, index, at::full({rows, 1}, -1, gradient.options()));
  gradient.mul_(counted.to(type).mul(scale).unsqueeze(1));
  logits.copy_(gradient);
  return at::where(counted, losses, at::zeros({}, losses.options())).sum().to(at::kDouble);
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Variable forward(AutogradContext* ctx, const Variable& hidden, const Variable& weight,
                          const GradientBuffer& buffer_of_weight, const at::Tensor& targets, double denominator,
                          int64_t chunk_rows) {
    const at::Tensor& grad = buffer_of_weight.tensor;
    const int64_t n = hidden.size(0);
    const int64_t v = weight.size(0);
    const double scale = 1.0 / denominator;
    const bool weight_needs = weight.requires_grad();
    const bool needs_gradient = hidden.requires_grad() || weight_needs;
    at::Tensor dh = needs_gradient ? at::empty_like(hidden) : at::Tensor();
    at::Tensor dw = grad;
    if (weight_needs && !dw.defined()) dw = at::zeros_like(weight);
    at::Tensor total = at::zeros({}, hidden.options().dtype(at::kDouble));
    at::Tensor buffer = at::empty({std::min(chunk_rows, n), v}, hidden.options());
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, n - begin);
      const at::Tensor h = hidden.narrow(0, begin, rows);
      at::Tensor logits = buffer.narrow(0, 0, rows);
      at::mm_out(logits, h, weight.t());
      total.add_(loss_and_gradient(logits, targets.narrow(0, begin, rows), scale));
      if (needs_gradient) {
        at::Tensor out = dh.narrow(0, begin, rows);
        at::mm_out(out, logits, weight);
      }
      if (weight_needs) dw.addmm_(logits.t(), h);
    }
    ctx->saved_data["dh"] = dh;
    ctx->saved_data["dw"] = grad.defined() || !weight_needs ? at::Tensor() : dw;
    ctx->saved_data["in_place"] = grad.defined();
    return (total * scale).to(accumulate_type(hidden.scalar_type()));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor dh = ctx->saved_data["dh"].toTensor();
    at::Tensor dw = ctx->saved_data["dw"].toTensor();
    const bool in_place = ctx->saved_data["in_place"].toBool();
    if (in_place && grads[0].device().is_cpu()) {
      TORCH_CHECK(grads[0].item<double>() == 1.0,
                  "linear_cross_entropy added to the weight's gradient in its forward "
                  "pass: scale the loss by its denominator, not by the gradient");
    }
    if (!in_place) {
      dh = dh * grads[0].to(dh.scalar_type());
      if (dw.defined()) dw = dw * grads[0].to(dw.scalar_type());
    }
    return {dh, dw, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t cross_entropy_chunk_rows(int64_t vocabulary) {
  return std::max<int64_t>(64, (int64_t{16} << 20) / std::max<int64_t>(vocabulary, 1));
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& targets,
                                double denominator, int64_t chunk_rows) {
  TORCH_CHECK(hidden.dim() == 2 && targets.dim() == 1 && hidden.size(0) == targets.size(0),
              "linear_cross_entropy takes hidden [N, D] and targets [N], got ", hidden.sizes(), " and ",
              targets.sizes());
  if (targets.device().is_cpu() && targets.numel() > 0) {
    // The kernel writes at the target's place in a row of logits.
    const at::Tensor counted = targets.masked_fill(targets.eq(ignored_target), 0);
    const auto [low, high] = counted.aminmax();
    TORCH_CHECK_INDEX(low.item<int64_t>() >= 0 && high.item<int64_t>() < weight.value.size(0),
                      "linear_cross_entropy: targets from ", low.item<int64_t>(), " to ", high.item<int64_t>(),
                      " do not fit ", weight.value.size(0), " classes");
  }
  if (chunk_rows <= 0) chunk_rows = cross_entropy_chunk_rows(weight.value.size(0));
  const bool gradients = at::GradMode::is_enabled();
  const at::Tensor value = gradients ? weight.value : weight.value.detach();
  return LinearCrossEntropy::apply(gradients ? hidden : hidden.detach(), value,
                                   GradientBuffer{gradients ? weight.grad : at::Tensor()}, targets.contiguous(),
                                   denominator > 0 ? denominator : 1.0, chunk_rows);
}

at::Tensor linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                          double denominator) {
  const at::Tensor logits = at::linear(hidden, weight).to(accumulate_type(hidden.scalar_type()));
  const at::Tensor losses = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, ignored_target);
  return losses / (denominator > 0 ? denominator : 1.0);
}

}  // namespace mythos
