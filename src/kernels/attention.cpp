#include "kernels/attention.h"

#include "kernels/attention_cpu.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/linear.h"
#include "kernels/part.h"
#include "kernels/product.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool needs_gradient(std::initializer_list<at::Tensor> inputs) {
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

struct GroupedAttention : torch::autograd::Function<GroupedAttention> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v) {
    const PartScope scope(Part::attention);
    const cpu::Attended result = cpu::grouped_attention(q, k, v, true);
    ctx->save_for_backward({q, k, v, result.out, result.lse});
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::attention);
    const auto saved = ctx->get_saved_variables();
    const auto d = cpu::grouped_attention_backward(saved[0], saved[1], saved[2], {saved[3], saved[4]}, grads[0]);
    return {d[0], d[1], d[2]};
  }
};

cpu::MlaInputs mla_inputs(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope, const at::Tensor& c,
                          const at::Tensor& s, const std::vector<int64_t>& sizes) {
  return {q_up, kv, k_rope, c, s, sizes[0], sizes[1], sizes[2], sizes[3]};
}

struct MlaAttention : torch::autograd::Function<MlaAttention> {
  static Variable forward(AutogradContext* ctx, const Variable& q_up, const Variable& kv, const Variable& k_rope,
                          const at::Tensor& c, const at::Tensor& s, const std::vector<int64_t>& sizes) {
    const PartScope scope(Part::attention);
    const cpu::Attended result = cpu::latent_attention(mla_inputs(q_up, kv, k_rope, c, s, sizes), true);
    ctx->save_for_backward({q_up, kv, k_rope, c, s, result.out, result.lse});
    ctx->saved_data["sizes"] = sizes;
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::attention);
    const auto saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const auto d = cpu::latent_attention_backward(mla_inputs(saved[0], saved[1], saved[2], saved[3], saved[4], sizes),
                                                  {saved[5], saved[6]}, grads[0]);
    return {d[0], d[1], d[2], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct ProjectedMlaAttention : torch::autograd::Function<ProjectedMlaAttention> {
  static Variable forward(AutogradContext* ctx, const Variable& query, const Variable& q_up, const Variable& latent,
                          const Variable& kv_up, const Variable& k_rope, const at::Tensor& c, const at::Tensor& s,
                          const std::vector<int64_t>& sizes, const GradientBuffer& q_grad,
                          const GradientBuffer& kv_grad) {
    const at::Tensor q = project(query, q_up);
    const at::Tensor kv = project(latent, kv_up);
    const PartScope scope(Part::attention);
    const cpu::Attended result = cpu::latent_attention(mla_inputs(q, kv, k_rope, c, s, sizes), true);
    ctx->save_for_backward({query, q_up, latent, kv_up, k_rope, c, s, result.out, result.lse});
    ctx->saved_data["sizes"] = sizes;
    ctx->saved_data["q_grad"] = q_grad.tensor;
    ctx->saved_data["kv_grad"] = kv_grad.tensor;
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &query = saved[0], &q_up = saved[1], &latent = saved[2], &kv_up = saved[3];
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const at::Tensor q = project(query, q_up);
    const at::Tensor kv = project(latent, kv_up);
    const auto d = [&] {
      const PartScope scope(Part::attention);
      return cpu::latent_attention_backward(mla_inputs(q, kv, saved[4], saved[5], saved[6], sizes),
                                            {saved[7], saved[8]}, grads[0]);
    }();
    const at::Tensor dq_up = weight_gradient(d[0], query, ctx->saved_data["q_grad"].toTensor());
    const at::Tensor dkv_up = weight_gradient(d[1], latent, ctx->saved_data["kv_grad"].toTensor());
    const at::Tensor none;
    return {project(d[0], q_up.t()), dq_up, project(d[1], kv_up.t()), dkv_up, d[2], none, none, none, none, none};
  }
};

struct Heads {
  at::Tensor q, k, v;  // [B, T, H, nope + rope], [B, S, H, nope + rope], [B, S, H, value]
};

Heads assemble_heads(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                     const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const int64_t batch = q_up.size(0), t_count = q_up.size(1), s_count = kv.size(1);
  const auto q_parts = q_up.split_with_sizes({sizes.heads * sizes.nope, sizes.heads * sizes.rope}, -1);
  const at::Tensor q_nope = q_parts[0].reshape({batch, t_count, sizes.heads, sizes.nope});
  const at::Tensor q_rope = rotate_reference(q_parts[1].reshape({batch, t_count, sizes.heads, sizes.rope}), positions);
  const auto kv_parts = kv.reshape({batch, s_count, sizes.heads, sizes.nope + sizes.value})
                            .split_with_sizes({sizes.nope, sizes.value}, -1);
  const at::Tensor shared = k_rope.unsqueeze(2).expand({batch, s_count, sizes.heads, sizes.rope});
  return {at::cat({q_nope, q_rope}, -1), at::cat({kv_parts[0], shared}, -1), kv_parts[1]};
}

// [T, S] with true where query i may see key j, right-aligned.
at::Tensor visible_keys(int64_t t_count, int64_t s_count, at::Device device) {
  return at::ones({t_count, s_count}, at::TensorOptions(device).dtype(at::kBool)).tril(s_count - t_count);
}

// LibTorch's fused attention, which is_causal aligns to the top left: right only where there are as many queries as
// keys.
at::Tensor fused_elsewhere(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t t_count = q.size(1);
  const int64_t s_count = k.size(1);
  const bool square = t_count == s_count;
  std::optional<at::Tensor> mask;
  if (!square && t_count > 1) mask = visible_keys(t_count, s_count, q.device());
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0,
                                          square && t_count > 1, std::nullopt, q.size(2) != k.size(2))
      .transpose(1, 2);
}

}  // namespace

at::Tensor mla_attention(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                         const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const int64_t t_count = q_up.size(1), s_count = kv.size(1);
  TORCH_CHECK(q_up.dim() == 3 && kv.dim() == 3 && k_rope.dim() == 3 && t_count <= s_count &&
                  kv.size(0) == q_up.size(0) && k_rope.size(0) == q_up.size(0) && k_rope.size(1) == s_count &&
                  q_up.size(2) == sizes.heads * (sizes.nope + sizes.rope) &&
                  kv.size(2) == sizes.heads * (sizes.nope + sizes.value) && k_rope.size(2) == sizes.rope &&
                  positions.cos.size(0) == t_count && positions.cos.size(1) == sizes.rope / 2,
              "mla_attention: shapes do not fit: q_up ", q_up.sizes(), ", kv ", kv.sizes(), ", k_rope ", k_rope.sizes(),
              ", positions ", positions.cos.sizes());
  if (cuda::attention_applies(q_up, kv)) return cuda::mla_attention(q_up, kv, k_rope, positions, sizes);
  if (rows_apply(q_up)) {
    const std::vector<int64_t> list{sizes.heads, sizes.nope, sizes.rope, sizes.value};
    if (needs_gradient({q_up, kv, k_rope})) {
      return MlaAttention::apply(q_up, kv, k_rope, positions.cos, positions.sin, list);
    }
    return cpu::latent_attention(mla_inputs(q_up, kv, k_rope, positions.cos, positions.sin, list), false).out;
  }
  const Heads heads = assemble_heads(q_up, kv, k_rope, positions, sizes);
  // The flash kernels want one width for q, k and v.
  const int64_t padding = std::max<int64_t>(0, sizes.nope + sizes.rope - sizes.value);
  return fused_elsewhere(heads.q, heads.k, at::constant_pad_nd(heads.v, {0, padding}))
      .narrow(-1, 0, sizes.value)
      .reshape({q_up.size(0), t_count, sizes.heads * sizes.value});
}

at::Tensor mla_projected_attention(const at::Tensor& query, const Weight& q_up, const at::Tensor& latent,
                                   const Weight& kv_up, const at::Tensor& k_rope, const RotaryTable::Slice& positions,
                                   const MlaHeads& sizes) {
  if (!cuda::applies(query) && rows_apply(query) && needs_gradient({query, latent, k_rope, q_up.value, kv_up.value})) {
    return ProjectedMlaAttention::apply(query, q_up.value, latent, kv_up.value, k_rope, positions.cos, positions.sin,
                                        std::vector<int64_t>{sizes.heads, sizes.nope, sizes.rope, sizes.value},
                                        GradientBuffer{q_up.grad}, GradientBuffer{kv_up.grad});
  }
  return mla_attention(linear(query, q_up), linear(latent, kv_up), k_rope, positions, sizes);
}

at::Tensor mla_attention_reference(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                                   const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const Heads heads = assemble_heads(q_up, kv, k_rope, positions, sizes);
  return causal_attention_reference(heads.q, heads.k, heads.v).flatten(2).contiguous();
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(1) <= k.size(1), "causal_attention: ", q.size(1),
              " queries over ", k.size(1), " keys");
  TORCH_CHECK(k.size(0) == q.size(0) && v.size(0) == q.size(0) && v.size(1) == k.size(1) && k.size(3) == q.size(3) &&
                  v.size(2) == k.size(2) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
              "causal_attention: shapes do not fit: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  if (cuda::attention_applies(q, k)) return cuda::causal_attention(q, k, v);
  if (!rows_apply(q)) return fused_elsewhere(q, k, v);
  if (needs_gradient({q, k, v})) return GroupedAttention::apply(q, k, v);
  return cpu::grouped_attention(q, k, v, false).out;
}

at::Tensor causal_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto type = accumulate_type(q.scalar_type());
  const int64_t groups = q.size(2) / k.size(2);
  const at::Tensor keys = k.repeat_interleave(groups, 2).transpose(1, 2).to(type);
  const at::Tensor values = v.repeat_interleave(groups, 2).transpose(1, 2).to(type);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q.transpose(1, 2).to(type), keys.transpose(-2, -1)) * scale;
  scores = scores.masked_fill(visible_keys(q.size(1), k.size(1), q.device()).logical_not(),
                              -std::numeric_limits<double>::infinity());
  return at::matmul(scores.softmax(-1), values).transpose(1, 2).to(q.scalar_type());
}

}  // namespace mythos
