#include "kernels/cuda/heads.h"

#include "kernels/cuda/heads_tensors.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"

#include <torch/csrc/autograd/custom_function.h>

namespace mythos::cuda {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// [B, T, width] and [B, T, H, width] may lie in any way whose last dimension is dense.
at::Tensor dense(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

Strided strided(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1), t.dim() == 4 ? t.stride(2) : 0};
}

at::Tensor rotated(const at::Tensor& x_, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const PartScope scope(Part::elementwise);
  const at::Tensor x = dense(x_);
  const at::Tensor out = at::empty(x.sizes(), x.options());
  RotateArgs a;
  a.type = type_of(x);
  a.batch = x.size(0);
  a.count = x.size(1);
  a.heads = x.size(2);
  a.width = x.size(3);
  a.x = strided(x);
  a.cos = cos.const_data_ptr<float>();
  a.sin = sin.const_data_ptr<float>();
  a.back = back;
  a.out = out.data_ptr();
  rotate(a, place_of(x));
  return out;
}

struct Rotated : torch::autograd::Function<Rotated> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotated(x, cos, sin, false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], true), at::Tensor(), at::Tensor()};
  }
};

template <class Args>
void set_sizes(Args& a, const at::Tensor& like, const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  a.type = type_of(like);
  a.batch = like.size(0);
  a.count = like.size(1);
  a.heads = sizes.heads;
  a.nope = sizes.nope;
  a.rope = sizes.rope;
  a.value = sizes.value;
  a.cos = positions.cos.const_data_ptr<float>();
  a.sin = positions.sin.const_data_ptr<float>();
}

}  // namespace

at::Tensor rotate(const at::Tensor& x, const RotaryTable::Slice& positions) {
  return Rotated::apply(x, positions.cos, positions.sin);
}

QueriesKeysValues assemble(const MlaProjections& in, int64_t key_width, int64_t value_width) {
  const at::Tensor q_up = dense(in.q_up), kv = dense(in.kv), k_rope = dense(in.k_rope);
  const int64_t batch = q_up.size(0), count = q_up.size(1);
  QueriesKeysValues r;
  r.q = at::empty({batch, count, in.sizes.heads, key_width}, q_up.options());
  r.k = at::empty_like(r.q);
  r.v = at::empty({batch, count, in.sizes.heads, value_width}, q_up.options());
  HeadsArgs a;
  set_sizes(a, q_up, in.positions, in.sizes);
  a.q_up = strided(q_up);
  a.kv = strided(kv);
  a.k_rope = strided(k_rope);
  a.key_width = key_width;
  a.value_width = value_width;
  a.q = r.q.data_ptr();
  a.k = r.k.data_ptr();
  a.v = r.v.data_ptr();
  heads_forward(a, place_of(q_up));
  return r;
}

std::array<at::Tensor, 3> assemble_backward(const QueriesKeysValues& grads, const RotaryTable::Slice& positions,
                                            const MlaHeads& sizes) {
  const at::Tensor dq = dense(grads.q), dk = dense(grads.k), dv = dense(grads.v);
  const int64_t batch = dq.size(0), count = dq.size(1);
  std::array<at::Tensor, 3> out{at::empty({batch, count, sizes.heads * (sizes.nope + sizes.rope)}, dq.options()),
                                at::empty({batch, count, sizes.heads * (sizes.nope + sizes.value)}, dq.options()),
                                at::empty({batch, count, sizes.rope}, dq.options())};
  HeadsBackwardArgs a;
  set_sizes(a, dq, positions, sizes);
  a.dq = strided(dq);
  a.dk = strided(dk);
  a.dv = strided(dv);
  a.dq_up = out[0].data_ptr();
  a.dkv = out[1].data_ptr();
  a.dk_rope = out[2].data_ptr();
  heads_backward(a, place_of(dq));
  return out;
}

}  // namespace mythos::cuda
