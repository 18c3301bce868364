#include "kernels/attention.h"

#include "kernels/cpu/rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AssembleMla : torch::autograd::Function<AssembleMla> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q_up, const at::Tensor& kv,
                               const at::Tensor& k_rope, const at::Tensor& c, const at::Tensor& s,
                               std::vector<int64_t> sizes) {
    const int64_t heads = sizes[0], nope = sizes[1], rope = sizes[2], value = sizes[3];
    const int64_t width = nope + rope;
    const int64_t v_width = std::max(value, width);
    const int64_t batch = q_up.size(0), t_count = q_up.size(1), s_count = kv.size(1);
    const at::Tensor q_in = q_up.contiguous(), kv_in = kv.contiguous(), kr_in = k_rope.contiguous();
    at::Tensor q = at::empty({batch, t_count, heads, width}, q_up.options());
    at::Tensor k = at::empty({batch, s_count, heads, width}, q_up.options());
    at::Tensor v = at::empty({batch, s_count, heads, v_width}, q_up.options());
    AT_DISPATCH_FLOATING_TYPES(q_up.scalar_type(), "mla_heads", [&] {
      const auto* qp = q_in.const_data_ptr<scalar_t>();
      const auto* kvp = kv_in.const_data_ptr<scalar_t>();
      const auto* krp = kr_in.const_data_ptr<scalar_t>();
      const auto* cp = c.const_data_ptr<float>();
      const auto* sp = s.const_data_ptr<float>();
      auto* qo = q.mutable_data_ptr<scalar_t>();
      auto* ko = k.mutable_data_ptr<scalar_t>();
      auto* vo = v.mutable_data_ptr<scalar_t>();
      const int64_t q_rows = batch * t_count;
      for_row_parts(q_rows, row_parts(q_rows, heads * width), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const auto* row = qp + r * heads * width;
          const int64_t t = r % t_count;
          for (int64_t h = 0; h < heads; ++h) {
            auto* out = qo + (r * heads + h) * width;
            std::copy_n(row + h * nope, nope, out);
            cpu::rotate_row<scalar_t>(row + heads * nope + h * rope, cp + t * rope / 2, sp + t * rope / 2, scalar_t(1),
                                      rope / 2, out + nope);
          }
        }
      });
      const int64_t k_rows = batch * s_count;
      for_row_parts(k_rows, row_parts(k_rows, heads * (width + v_width)), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const auto* row = kvp + r * heads * (nope + value);
          for (int64_t h = 0; h < heads; ++h) {
            auto* k_out = ko + (r * heads + h) * width;
            auto* v_out = vo + (r * heads + h) * v_width;
            const auto* in = row + h * (nope + value);
            std::copy_n(in, nope, k_out);
            std::copy_n(krp + r * rope, rope, k_out + nope);
            std::copy_n(in + nope, value, v_out);
            std::fill_n(v_out + value, v_width - value, scalar_t(0));
          }
        }
      });
    });
    ctx->save_for_backward({c, s});
    ctx->saved_data["sizes"] = sizes;
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& c = saved[0];
    const at::Tensor& s = saved[1];
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const int64_t heads = sizes[0], nope = sizes[1], rope = sizes[2], value = sizes[3];
    const int64_t width = nope + rope;
    const int64_t v_width = std::max(value, width);
    const at::Tensor dq = grads[0].contiguous(), dk = grads[1].contiguous(), dv = grads[2].contiguous();
    const int64_t batch = dq.size(0), t_count = dq.size(1), s_count = dk.size(1);
    at::Tensor dq_up = at::empty({batch, t_count, heads * width}, dq.options());
    at::Tensor dkv = at::empty({batch, s_count, heads * (nope + value)}, dq.options());
    at::Tensor dk_rope = at::zeros({batch, s_count, rope}, dq.options());
    AT_DISPATCH_FLOATING_TYPES(dq.scalar_type(), "mla_heads_backward", [&] {
      const auto* dqp = dq.const_data_ptr<scalar_t>();
      const auto* dkp = dk.const_data_ptr<scalar_t>();
      const auto* dvp = dv.const_data_ptr<scalar_t>();
      const auto* cp = c.const_data_ptr<float>();
      const auto* sp = s.const_data_ptr<float>();
      auto* qo = dq_up.mutable_data_ptr<scalar_t>();
      auto* kvo = dkv.mutable_data_ptr<scalar_t>();
      auto* kro = dk_rope.mutable_data_ptr<scalar_t>();
      const int64_t q_rows = batch * t_count;
      for_row_parts(q_rows, row_parts(q_rows, heads * width), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          auto* row = qo + r * heads * width;
          const int64_t t = r % t_count;
          for (int64_t h = 0; h < heads; ++h) {
            const auto* in = dqp + (r * heads + h) * width;
            std::copy_n(in, nope, row + h * nope);
            cpu::rotate_row<scalar_t>(in + nope, cp + t * rope / 2, sp + t * rope / 2, scalar_t(-1), rope / 2,
                                      row + heads * nope + h * rope);
          }
        }
      });
      const int64_t k_rows = batch * s_count;
      for_row_parts(k_rows, row_parts(k_rows, heads * (width + v_width)), [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          for (int64_t h = 0; h < heads; ++h) {
            const auto* k_in = dkp + (r * heads + h) * width;
            auto* out = kvo + (r * heads + h) * (nope + value);
            std::copy_n(k_in, nope, out);
            std::copy_n(dvp + (r * heads + h) * v_width, value, out + nope);
            cpu::axpy_row<scalar_t>(scalar_t(1), k_in + nope, rope, kro + r * rope);
          }
        }
      });
    });
    return {dq_up, dkv, dk_rope, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Heads mla_heads_reference(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                          const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const int64_t batch = q_up.size(0), t_count = q_up.size(1), s_count = kv.size(1);
  const auto q_parts = q_up.split_with_sizes({sizes.heads * sizes.nope, sizes.heads * sizes.rope}, -1);
  const at::Tensor q_nope = q_parts[0].reshape({batch, t_count, sizes.heads, sizes.nope});
  const at::Tensor q_rope = rotate_reference(q_parts[1].reshape({batch, t_count, sizes.heads, sizes.rope}), positions);
  const auto kv_parts = kv.reshape({batch, s_count, sizes.heads, sizes.nope + sizes.value})
                            .split_with_sizes({sizes.nope, sizes.value}, -1);
  const at::Tensor shared = k_rope.unsqueeze(2).expand({batch, s_count, sizes.heads, sizes.rope});
  const int64_t padding = std::max<int64_t>(0, sizes.nope + sizes.rope - sizes.value);
  return {at::cat({q_nope, q_rope}, -1), at::cat({kv_parts[0], shared}, -1),
          at::constant_pad_nd(kv_parts[1], {0, padding})};
}

Heads mla_heads(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  if (!rows_apply(q_up)) return mla_heads_reference(q_up, kv, k_rope, positions, sizes);
  const auto out = AssembleMla::apply(q_up, kv, k_rope, positions.cos, positions.sin,
                                      std::vector<int64_t>{sizes.heads, sizes.nope, sizes.rope, sizes.value});
  return {out[0], out[1], out[2]};
}

namespace {
// [T, S] with true where query i may see key j, right-aligned.
at::Tensor visible_keys(int64_t t_count, int64_t s_count, at::Device device) {
  return at::ones({t_count, s_count}, at::TensorOptions(device).dtype(at::kBool)).tril(s_count - t_count);
}
}  // namespace

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

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t t_count = q.size(1);
  const int64_t s_count = k.size(1);
  TORCH_CHECK(t_count <= s_count, "causal_attention: ", t_count, " queries over ", s_count, " keys");
  const bool square = t_count == s_count;
  // LibTorch's is_causal aligns to the top left: right only where there are as many queries as keys.
  std::optional<at::Tensor> mask;
  if (!square && t_count > 1) mask = visible_keys(t_count, s_count, q.device());
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0,
                                          square && t_count > 1, std::nullopt, q.size(2) != k.size(2))
      .transpose(1, 2);
}

}  // namespace mythos
