#include "kernels/absorbed_attention.h"

#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"
#include "kernels/part.h"

#include <cmath>

namespace mythos {
namespace {

struct Sizes {
  int64_t batch, queries, keys, rank;
  MlaHeads head;

  [[nodiscard]] int64_t width() const { return head.nope + head.value; }  // rows of kv_up for one head
};

// Heads of one query that read the latent together.
constexpr int64_t heads_together = 4;

template <class T, class W>
void attend_heads(const Sizes& s, int64_t first, int64_t count, int64_t seen, const T* q, const float* c,
                  const float* sine, const T* latent, int64_t latent_row, const T* key, int64_t key_row, const W* kv_up,
                  T* scratch, T* out) {
  const auto& [heads, nope, rope, value] = s.head;
  T* absorbed = scratch;                  // [count, rank]: queries for the latent, and then sums of latents
  T* turned = absorbed + count * s.rank;  // [count, rope]
  T* scores = turned + count * rope;      // [count, keys]
  T* of_rope = scores + count * s.keys;   // [count, keys]
  const T scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(nope + rope)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t h = first + i;
    cpu::weighted_rows(nope, s.rank, q + h * nope, kv_up + h * s.width() * s.rank, s.rank, absorbed + i * s.rank);
    cpu::rotate_row<T>(q + heads * nope + h * rope, c, sine, T(1), rope / 2, turned + i * rope);
  }
  cpu::few_rows(count, s.rank, absorbed, s.rank, seen, latent, latent_row, scores, s.keys);
  cpu::few_rows(count, rope, turned, rope, seen, key, key_row, of_rope, s.keys);
  for (int64_t i = 0; i < count; ++i) {
    T* row = scores + i * s.keys;
    const T* more = of_rope + i * s.keys;
    for (int64_t j = 0; j < seen; ++j) row[j] = (row[j] + more[j]) * scale;
    cpu::softmax_row(row, seen);
    cpu::weighted_rows(seen, s.rank, row, latent, latent_row, absorbed + i * s.rank);
    const int64_t h = first + i;
    cpu::few_rows(1, s.rank, absorbed + i * s.rank, s.rank, value, kv_up + (h * s.width() + nope) * s.rank, s.rank,
                  out + h * value, value);
  }
}

template <class T, class W>
void attend(const Sizes& s, const at::Tensor& q_up, const at::Tensor& latent, const W* kv_up, const at::Tensor& k_rope,
            const RotaryTable::Slice& positions, at::Tensor& out) {
  const int64_t groups = (s.head.heads + heads_together - 1) / heads_together;
  const int64_t tasks = s.batch * s.queries * groups;
  const int64_t workers = row_parts(tasks, s.keys * (2 * s.rank + s.head.rope) * heads_together);
  const int64_t scratch_size = heads_together * (s.rank + s.head.rope + 2 * s.keys);
  const at::Tensor scratch = at::empty({workers, scratch_size}, q_up.options());
  T* scratch_data = scratch.mutable_data_ptr<T>();
  T* out_data = out.mutable_data_ptr<T>();
  for_row_parts(tasks, workers, [&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / groups, b = row / s.queries, t = row % s.queries;
      const int64_t first = task % groups * heads_together;
      attend_heads<T, W>(s, first, std::min(heads_together, s.head.heads - first), s.keys - s.queries + t + 1,
                         q_up.const_data_ptr<T>() + row * q_up.size(2),
                         positions.cos.const_data_ptr<float>() + t * s.head.rope / 2,
                         positions.sin.const_data_ptr<float>() + t * s.head.rope / 2,
                         latent.const_data_ptr<T>() + b * latent.stride(0), latent.stride(1),
                         k_rope.const_data_ptr<T>() + b * k_rope.stride(0), k_rope.stride(1), kv_up,
                         scratch_data + part * scratch_size, out_data + row * out.size(2));
    }
  });
}

at::Tensor with_dense_rows(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

}  // namespace

bool absorbing_pays(int64_t queries, int64_t rank, const MlaHeads& sizes) {
  const int64_t more = 2 * rank - sizes.nope - sizes.value;
  return queries * more < rank * (sizes.nope + sizes.value);
}

at::Tensor absorbed_attention(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& kv_up,
                              const at::Tensor& k_rope, const RotaryTable::Slice& positions, const MlaHeads& sizes) {
  const PartScope scope(Part::attention);
  const Sizes s{q_up.size(0), q_up.size(1), latent.size(1), latent.size(2), sizes};
  TORCH_CHECK(q_up.dim() == 3 && latent.dim() == 3 && k_rope.dim() == 3 && s.queries <= s.keys && s.queries > 0 &&
                  latent.size(0) == s.batch && k_rope.size(0) == s.batch && k_rope.size(1) == s.keys &&
                  q_up.size(2) == sizes.heads * (sizes.nope + sizes.rope) && k_rope.size(2) == sizes.rope &&
                  kv_up.dim() == 2 && kv_up.size(0) == sizes.heads * s.width() && kv_up.size(1) == s.rank &&
                  positions.cos.size(0) == s.queries && positions.cos.size(1) == sizes.rope / 2,
              "absorbed_attention: shapes do not fit: q_up ", q_up.sizes(), ", latent ", latent.sizes(), ", kv_up ",
              kv_up.sizes(), ", k_rope ", k_rope.sizes(), ", positions ", positions.cos.sizes());
  const bool narrow = kv_up.scalar_type() == at::kBFloat16 && q_up.scalar_type() == at::kFloat;
  if (!rows_apply(q_up) || !(narrow || kv_up.scalar_type() == q_up.scalar_type())) {
    return absorbed_attention_reference(q_up, latent, kv_up, k_rope, positions, sizes);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor q = q_up.contiguous(), c = with_dense_rows(latent), key = with_dense_rows(k_rope),
                   w = kv_up.contiguous();
  at::Tensor out = at::empty({s.batch, s.queries, sizes.heads * sizes.value}, q_up.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "absorbed_attention", [&] {
    if constexpr (std::is_same_v<scalar_t, float>) {
      if (narrow) {
        return attend<float>(s, q, c, reinterpret_cast<const cpu::Bf16*>(w.const_data_ptr()), key, positions, out);
      }
    }
    attend<scalar_t>(s, q, c, w.const_data_ptr<scalar_t>(), key, positions, out);
  });
  return out;
}

at::Tensor absorbed_attention_reference(const at::Tensor& q_up, const at::Tensor& latent, const at::Tensor& kv_up,
                                        const at::Tensor& k_rope, const RotaryTable::Slice& positions,
                                        const MlaHeads& sizes) {
  const int64_t batch = q_up.size(0), queries = q_up.size(1), keys = latent.size(1), rank = latent.size(2);
  const auto type = accumulate_type(q_up.scalar_type());
  const auto w =
      kv_up.to(type).view({sizes.heads, sizes.nope + sizes.value, rank}).split_with_sizes({sizes.nope, sizes.value}, 1);
  const auto q = q_up.split_with_sizes({sizes.heads * sizes.nope, sizes.heads * sizes.rope}, -1);
  // [B, H, T, ..]
  const at::Tensor nope = q[0].reshape({batch, queries, sizes.heads, sizes.nope}).transpose(1, 2).to(type);
  const at::Tensor rope =
      rotate_reference(q[1].reshape({batch, queries, sizes.heads, sizes.rope}), positions).transpose(1, 2).to(type);
  const at::Tensor c = latent.to(type).unsqueeze(1), key = k_rope.to(type).unsqueeze(1);
  at::Tensor scores = at::matmul(at::matmul(nope, w[0]), c.transpose(-2, -1)) + at::matmul(rope, key.transpose(-2, -1));
  scores = scores / std::sqrt(static_cast<double>(sizes.nope + sizes.rope));
  const at::Tensor visible =
      at::ones({queries, keys}, at::TensorOptions(q_up.device()).dtype(at::kBool)).tril(keys - queries);
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor values = at::matmul(at::matmul(scores.softmax(-1), c), w[1].transpose(-2, -1));
  return values.transpose(1, 2).flatten(2).to(q_up.scalar_type());
}

}  // namespace mythos
