#include "kernels/cuda/attention.h"

#include "base/log.h"
#include "kernels/cuda/first_that_takes.h"
#include "kernels/cuda/heads_tensors.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <tuple>

namespace mythos::cuda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

AttentionCase case_of(const at::Tensor& like, HeadWidths own) {
  return {compute_capability(like.device()),
          like.scalar_type(),
          like.size(1),
          own.key,
          own.value,
          at::globalContext().deterministicAlgorithms()};
}

// Whether it is the forward or the backward pass, and what the heads are.
using Kind = std::tuple<bool, int, at::ScalarType, bool, int64_t, int64_t, int64_t, int64_t>;
FirstThatTakes<Kind>& memory() {
  static FirstThatTakes<Kind> all;
  return all;
}

template <class Try>
size_t first_that_takes(bool back, const AttentionCase& c, const std::vector<AttentionBackend>& order, size_t from,
                        int64_t heads, const Try& try_one) {
  return memory().run(Kind{back, c.capability, c.type, c.deterministic, c.count, c.width, c.value, heads}, from,
                      order.size(), try_one, [&order](size_t i, const c10::Error& error) {
                        log::warn("attention by {} was refused ({}); {} is tried", name_of(order[i]),
                                  error.what_without_backtrace(), name_of(order[i + 1]));
                      });
}

at::Tensor padded(const at::Tensor& t, int64_t width) {
  return t.size(-1) == width ? t : at::constant_pad_nd(t, {0, width - t.size(-1)});
}
at::Tensor heads_first(const at::Tensor& t) { return t.transpose(1, 2); }

// Heads [B, T, H, width] for a backend, made by whoever knows how.
template <class Make>
struct Attention {
  AttentionCase kind;
  int64_t heads = 0;
  Make make;  // QueriesKeysValues of (HeadWidths)

  [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(kind.width)); }
  [[nodiscard]] HeadWidths widths(AttentionBackend b) const {
    return padded_widths(b, kind.type, {kind.width, kind.value});
  }

  // out: [B, T, H, value], contiguous.
  std::pair<AttentionOutput, size_t> forward(bool with_lse) const {
    const auto order = attention_backends(kind);
    AttentionOutput r;
    const size_t taken = first_that_takes(false, kind, order, 0, heads, [&](size_t i) {
      const QueriesKeysValues in = make(widths(order[i]));
      r = attend(order[i], heads_first(in.q), heads_first(in.k), heads_first(in.v), scale(), with_lse);
    });
    r.out = heads_first(r.out).narrow(-1, 0, kind.value).contiguous();
    return {r, taken};
  }

  // Gradients [B, T, H or Hkv, width or wider].
  QueriesKeysValues backward(const AttentionOutput& f, size_t taken, const at::Tensor& dout) const {
    const auto order = attention_backends(kind);
    QueriesKeysValues r;
    first_that_takes(true, kind, order, taken, heads, [&](size_t i) {
      const HeadWidths w = widths(order[i]);
      const QueriesKeysValues in = make(w);
      const at::Tensor q = heads_first(in.q), k = heads_first(in.k), v = heads_first(in.v);
      // Another backend than the forward pass's needs an output of its own.
      AttentionOutput own = i == taken ? f : attend(order[i], q, k, v, scale(), true);
      if (i == taken) own.out = heads_first(padded(f.out, w.value));
      const auto d = attend_backward(order[i], q, k, v, own, heads_first(padded(dout, w.value)), scale());
      r = {heads_first(d[0]), heads_first(d[1]), heads_first(d[2])};
    });
    return r;
  }
};
template <class Make>
Attention(AttentionCase, int64_t, Make) -> Attention<Make>;

auto latent(const MlaProjections& in) {
  return Attention{case_of(in.q_up, {in.sizes.nope + in.sizes.rope, in.sizes.value}), in.sizes.heads,
                   [in](HeadWidths w) { return assemble(in, w.key, w.value); }};
}

auto grouped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return Attention{
      case_of(q, {q.size(3), v.size(3)}), q.size(2), [=](HeadWidths w) {
        const auto dense = [](const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); };
        return QueriesKeysValues{dense(padded(q, w.key)), dense(padded(k, w.key)), dense(padded(v, w.value))};
      }};
}

void keep(AutogradContext* ctx, variable_list tensors, const std::pair<AttentionOutput, size_t>& r) {
  for (const at::Tensor& t : {r.first.out, r.first.lse, r.first.rng[0], r.first.rng[1]}) tensors.push_back(t);
  ctx->save_for_backward(std::move(tensors));
  ctx->saved_data["taken"] = static_cast<int64_t>(r.second);
}
AttentionOutput kept(const variable_list& saved, size_t first) {
  return {saved[first], saved[first + 1], {saved[first + 2], saved[first + 3]}};
}

// Makes the heads again in the backward pass: they are larger than what they are made of.
struct LatentAttention : torch::autograd::Function<LatentAttention> {
  static MlaProjections inputs(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                               const at::Tensor& cos, const at::Tensor& sin, const std::vector<int64_t>& s) {
    return {q_up, kv, k_rope, {cos, sin}, {s[0], s[1], s[2], s[3]}};
  }
  static Variable forward(AutogradContext* ctx, const Variable& q_up, const Variable& kv, const Variable& k_rope,
                          const at::Tensor& cos, const at::Tensor& sin, const std::vector<int64_t>& sizes) {
    const PartScope scope(Part::attention);
    const auto r = latent(inputs(q_up, kv, k_rope, cos, sin, sizes)).forward(true);
    keep(ctx, {q_up, kv, k_rope, cos, sin}, r);
    ctx->saved_data["sizes"] = sizes;
    return r.first.out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::attention);
    const auto s = ctx->get_saved_variables();
    const auto in = inputs(s[0], s[1], s[2], s[3], s[4], ctx->saved_data["sizes"].toIntVector());
    const auto taken = static_cast<size_t>(ctx->saved_data["taken"].toInt());
    const auto d = latent(in).backward(kept(s, 5), taken, grads[0].contiguous());
    const auto out = assemble_backward(d, in.positions, in.sizes);
    const at::Tensor none;
    return {out[0], out[1], out[2], none, none, none};
  }
};

struct GroupedAttention : torch::autograd::Function<GroupedAttention> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v) {
    const PartScope scope(Part::attention);
    const auto r = grouped(q, k, v).forward(true);
    keep(ctx, {q, k, v}, r);
    return r.first.out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const PartScope scope(Part::attention);
    const auto s = ctx->get_saved_variables();
    const auto taken = static_cast<size_t>(ctx->saved_data["taken"].toInt());
    const auto d = grouped(s[0], s[1], s[2]).backward(kept(s, 3), taken, grads[0].contiguous());
    return {d.q.narrow(-1, 0, s[0].size(3)), d.k.narrow(-1, 0, s[1].size(3)), d.v.narrow(-1, 0, s[2].size(3))};
  }
};

}  // namespace

bool attention_applies(const at::Tensor& q, const at::Tensor& k) {
  return applies(q) && k.scalar_type() == q.scalar_type() && q.size(1) == k.size(1) && q.numel() > 0;
}

at::Tensor mla_attention(const at::Tensor& q_up, const at::Tensor& kv, const at::Tensor& k_rope,
                         const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const at::Tensor out =
      at::GradMode::is_enabled()
          ? LatentAttention::apply(q_up, kv, k_rope, positions.cos, positions.sin,
                                   std::vector<int64_t>{sizes.heads, sizes.nope, sizes.rope, sizes.value})
          : latent({q_up, kv, k_rope, positions, sizes}).forward(false).first.out;
  return out.flatten(2);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::GradMode::is_enabled() ? GroupedAttention::apply(q, k, v) : grouped(q, k, v).forward(false).first.out;
}

}  // namespace mythos::cuda
