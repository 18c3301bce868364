#include "kernels/attention_cpu.h"

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/weight.h"

#include <atomic>
#include <cmath>

namespace mythos::cpu {
namespace {

at::Tensor with_dense_rows(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

// Where the rows of one tensor [B, T, ...] lie.
template <class T>
struct Place {
  explicit Place(const at::Tensor& t)
      : data(t.const_data_ptr<T>()), batch(t.stride(0)), row(t.stride(1)), head(t.dim() == 4 ? t.stride(2) : 0) {}

  [[nodiscard]] const T* at(int64_t b, int64_t t, int64_t h = 0) const { return data + b * batch + t * row + h * head; }

  const T* data;
  int64_t batch, row, head;
};

// Heads lie side by side in a row of the projections, so that one head's next row is kilobytes away, on a page that
// processors do not fetch ahead by themselves.
constexpr int64_t rows_ahead = 8;
template <class T>
void fetch_ahead(const T* row, int64_t row_stride, int64_t n) {
  constexpr int64_t line = 64 / sizeof(T);
  const T* ahead = row + rows_ahead * row_stride;
  for (int64_t i = 0; i < n; i += line) __builtin_prefetch(ahead + i);
}

struct Shape {
  int64_t batch, queries, keys, heads, key_heads, width, value;

  [[nodiscard]] int64_t group() const { return heads / key_heads; }
  [[nodiscard]] int64_t offset() const { return keys - queries; }
  // Multiplications and additions of the forward pass, about.
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(batch * heads * queries) * static_cast<double>(offset() + (queries + 1) / 2) *
           static_cast<double>(width + value);
  }
};

// 128 x 128 scores with the queries, keys and values they come from take 270 KiB in fp32, within the second-level cache
// of any processor of this decade; products of this size run as fast as large ones. Fewer queries make longer tiles.
AttentionTiles tiles_of(const Shape& s) {
  constexpr int64_t size = 128, strip = 64, longest = 2048;
  const int64_t rows = std::min(s.queries, size);
  const int64_t keys = std::clamp(size * size / rows, size, longest);
  return {rows, std::max(rows, std::min(s.keys, keys)), std::min(rows, strip)};
}

// Cuts one scratch buffer into aligned pieces.
template <class T>
class Scratch {
 public:
  explicit Scratch(T* data) : next_(data) {}
  T* take(int64_t n) {
    T* piece = next_;
    next_ += padded(n);
    return piece;
  }
  Matrix<T> matrix(int64_t rows, int64_t width) { return {take(rows * width), width, width}; }
  static int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

 private:
  T* next_;
};

// Calls body(task, scratch) for every task, each worker taking the next one when it is done with one: tasks must not
// depend on each other, and then nothing depends on who does what.
template <class T, class Body>
void for_tasks(int64_t tasks, double flops, int64_t scratch_size, const at::TensorOptions& options, const Body& body) {
  const int64_t workers = flops < 1e6 ? 1 : std::min<int64_t>(tasks, at::get_num_threads());
  const at::Tensor scratch = at::empty({workers, scratch_size}, options);
  T* data = scratch.mutable_data_ptr<T>();
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    const SerialBlas serial;
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t task = next++; task < tasks; task = next++) body(task, data + worker * scratch_size);
    }
  });
}

// ---- where queries, keys and values come from and gradients go ------------------------------------------------------

template <class T>
struct GroupedLayout {
  GroupedLayout(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in)
      : shape{q_in.size(0), q_in.size(1), k_in.size(1), q_in.size(2), k_in.size(2), q_in.size(3), v_in.size(3)},
        q(q_in),
        k(k_in),
        v(v_in),
        scale(static_cast<T>(1.0 / std::sqrt(static_cast<double>(q_in.size(3))))) {}

  void load_query(int64_t b, int64_t t, int64_t h, T* out) const {
    fetch_ahead(q.at(b, t, h), q.row, shape.width);
    scale_row(scale, q.at(b, t, h), shape.width, out);
  }
  void load_key(int64_t b, int64_t s, int64_t h, T* key, T* value) const {
    fetch_ahead(k.at(b, s, h), k.row, shape.width);
    fetch_ahead(v.at(b, s, h), v.row, shape.value);
    std::copy_n(k.at(b, s, h), shape.width, key);
    std::copy_n(v.at(b, s, h), shape.value, value);
  }
  [[nodiscard]] Keys<T> keys_in_place(int64_t b, int64_t h) const {
    return {{k.at(b, 0, h), k.row, shape.width}, {}, {v.at(b, 0, h), v.row, shape.value}};
  }

  void store_query(int64_t b, int64_t t, int64_t h, const T* dquery) const {
    scale_row(scale, dquery, shape.width, dq + ((b * shape.queries + t) * shape.heads + h) * shape.width);
  }
  void store_key(int64_t b, int64_t s, int64_t h, const T* dkey, const T* dvalue) const {
    const int64_t row = (b * shape.keys + s) * shape.key_heads + h / shape.group();
    if (h % shape.group() == 0) {
      std::copy_n(dkey, shape.width, dk + row * shape.width);
      std::copy_n(dvalue, shape.value, dv + row * shape.value);
    } else {
      axpy_row(T(1), dkey, shape.width, dk + row * shape.width);
      axpy_row(T(1), dvalue, shape.value, dv + row * shape.value);
    }
  }

  Shape shape;
  Place<T> q, k, v;
  T scale;
  T *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

template <class T>
struct LatentLayout {
  explicit LatentLayout(const MlaInputs& in)
      : shape{in.q_up.size(0), in.q_up.size(1), in.kv.size(1), in.heads, in.heads, in.nope + in.rope, in.value},
        nope(in.nope),
        rope(in.rope),
        q(in.q_up),
        kv(in.kv),
        k_rope(in.k_rope),
        cos(in.cos.const_data_ptr<float>()),
        sin(in.sin.const_data_ptr<float>()),
        scale(static_cast<T>(1.0 / std::sqrt(static_cast<double>(in.nope + in.rope)))) {}

  void load_query(int64_t b, int64_t t, int64_t h, T* out) const {
    const T* row = q.at(b, t);
    const int64_t pairs = rope / 2;
    fetch_ahead(row + h * nope, q.row, nope);
    fetch_ahead(row + shape.heads * nope + h * rope, q.row, rope);
    scale_row(scale, row + h * nope, nope, out);
    rotate_row(row + shape.heads * nope + h * rope, cos + t * pairs, sin + t * pairs, T(1), pairs, out + nope);
    scale_row(scale, out + nope, rope, out + nope);
  }
  void load_key(int64_t b, int64_t s, int64_t h, T* key, T* value) const {
    const T* row = kv.at(b, s) + h * (nope + shape.value);
    fetch_ahead(row, kv.row, nope + shape.value);
    std::copy_n(row, nope, key);
    std::copy_n(k_rope.at(b, s), rope, key + nope);
    std::copy_n(row + nope, shape.value, value);
  }
  [[nodiscard]] Keys<T> keys_in_place(int64_t b, int64_t h) const {
    const T* rows = kv.at(b, 0) + h * (nope + shape.value);
    return {{rows, kv.row, nope}, {k_rope.at(b, 0), k_rope.row, rope}, {rows + nope, kv.row, shape.value}};
  }

  void store_query(int64_t b, int64_t t, int64_t h, T* dquery) const {
    T* row = dq + (b * shape.queries + t) * shape.heads * shape.width;
    const int64_t pairs = rope / 2;
    scale_row(scale, dquery, shape.width, dquery);
    std::copy_n(dquery, nope, row + h * nope);
    rotate_row(dquery + nope, cos + t * pairs, sin + t * pairs, T(-1), pairs, row + shape.heads * nope + h * rope);
  }
  void store_key(int64_t b, int64_t s, int64_t h, const T* dkey, const T* dvalue) const {
    T* row = dkv + ((b * shape.keys + s) * shape.heads + h) * (nope + shape.value);
    std::copy_n(dkey, nope, row);
    std::copy_n(dvalue, shape.value, row + nope);
    std::copy_n(dkey + nope, rope, dk_rope + ((b * shape.heads + h) * shape.keys + s) * rope);
  }

  Shape shape;
  int64_t nope, rope;
  Place<T> q, kv, k_rope;
  const float *cos, *sin;
  T scale;
  T *dq = nullptr, *dkv = nullptr;
  T* dk_rope = nullptr;  // [B, H, S, rope], to be summed over the heads
};

// ---- the two passes -------------------------------------------------------------------------------------------------

// One query over the keys: the heads of a group are the rows of one tile, and keys are read where they lie.
template <class T, class Layout>
void attend_one(const Layout& layout, T* out, T* lse, const at::TensorOptions& options) {
  const Shape& s = layout.shape;
  const int64_t group = s.group();
  const AttentionTiles tiles{group, std::max<int64_t>(group, std::min<int64_t>(s.keys, 512)), group};
  const int64_t size = Scratch<T>::padded(group * s.width) + Scratch<T>::padded(attend_scratch(tiles, s.value));
  for_tasks<T>(s.batch * s.key_heads, s.flops(), size, options, [&](int64_t task, T* data) {
    const int64_t b = task / s.key_heads, h = task % s.key_heads;
    Scratch<T> scratch(data);
    const Matrix<T> queries = scratch.matrix(group, s.width);
    for (int64_t r = 0; r < group; ++r) layout.load_query(b, 0, h * group + r, queries.row(r));
    const int64_t first = b * s.heads + h * group;
    attend<T>(tiles, {queries.data, s.width, s.width}, group, layout.keys_in_place(b, h), s.keys, false,
              scratch.take(attend_scratch(tiles, s.value)), {out + first * s.value, s.value, s.value},
              lse == nullptr ? nullptr : lse + first);
  });
}

template <class T, class Layout>
void forward(const Layout& layout, T* out, T* lse, const at::TensorOptions& options) {
  const Shape& s = layout.shape;
  if (s.batch * s.heads * s.queries == 0) return;
  if (s.queries == 1) {
    attend_one(layout, out, lse, options);
    return;
  }
  const AttentionTiles tiles = tiles_of(s);
  const int64_t blocks = (s.queries + tiles.queries - 1) / tiles.queries;
  const int64_t all_heads = s.batch * s.heads;
  const int64_t threads = at::get_num_threads();
  // Heads are cut into parts where they alone would not keep the threads equally busy.
  const int64_t parts = all_heads % threads == 0 || all_heads >= 4 * threads ? 1 : blocks;
  const int64_t size = Scratch<T>::padded(tiles.queries * s.width) + Scratch<T>::padded(s.keys * s.width) +
                       Scratch<T>::padded(s.keys * s.value) + Scratch<T>::padded(attend_scratch(tiles, s.value));
  for_tasks<T>(all_heads * parts, s.flops(), size, options, [&](int64_t task, T* data) {
    const int64_t b = task / parts / s.heads, h = task / parts % s.heads, key_head = h / s.group();
    // The later a block, the more keys it sees: those come first.
    const int64_t first_block = parts == 1 ? 0 : parts - 1 - task % parts;
    const int64_t end_block = parts == 1 ? blocks : first_block + 1;
    Scratch<T> scratch(data);
    const Matrix<T> queries = scratch.matrix(tiles.queries, s.width);
    const Matrix<T> key = scratch.matrix(s.keys, s.width);
    const Matrix<T> value = scratch.matrix(s.keys, s.value);
    T* rest = scratch.take(attend_scratch(tiles, s.value));
    const Keys<T> keys{{key.data, key.stride, s.width}, {}, {value.data, value.stride, s.value}};
    int64_t loaded = 0;
    for (int64_t block = first_block; block < end_block; ++block) {
      const int64_t row = block * tiles.queries;
      const int64_t rows = std::min(tiles.queries, s.queries - row);
      for (int64_t r = 0; r < rows; ++r) layout.load_query(b, row + r, h, queries.row(r));
      for (; loaded < s.offset() + row + rows; ++loaded) {
        layout.load_key(b, loaded, key_head, key.row(loaded), value.row(loaded));
      }
      T* block_lse = lse == nullptr ? nullptr : lse + (b * s.heads + h) * s.queries + row;
      attend<T>(tiles, {queries.data, s.width, s.width}, rows, keys, s.offset() + row, true, rest,
                {out + ((b * s.queries + row) * s.heads + h) * s.value, s.heads * s.value, s.value}, block_lse);
    }
  });
}

template <class T, class Layout>
void backward(const Layout& layout, const at::Tensor& forward_out, const at::Tensor& forward_lse,
              const at::Tensor& gradient) {
  const Shape& s = layout.shape;
  if (s.batch * s.heads * s.keys == 0) return;
  const at::Tensor dout_in = gradient.contiguous();
  const T* out = forward_out.const_data_ptr<T>();
  const T* lse = forward_lse.const_data_ptr<T>();
  const T* dout = dout_in.const_data_ptr<T>();
  const AttentionTiles tiles = tiles_of(s);
  const auto padded = Scratch<T>::padded;
  const int64_t size = 2 * padded(s.queries * s.width) + padded(s.queries * s.value) + padded(s.queries) +
                       2 * padded(tiles.keys * s.width) + 2 * padded(tiles.keys * s.value) +
                       padded(attend_backward_scratch(tiles));
  for_tasks<T>(s.batch * s.key_heads, s.flops(), size, forward_out.options(), [&](int64_t task, T* data) {
    const int64_t b = task / s.key_heads, key_head = task % s.key_heads;
    Scratch<T> scratch(data);
    const Matrix<T> queries = scratch.matrix(s.queries, s.width);
    const Matrix<T> dqueries = scratch.matrix(s.queries, s.width);
    const Matrix<T> douts = scratch.matrix(s.queries, s.value);
    T* delta = scratch.take(s.queries);
    const Matrix<T> key = scratch.matrix(tiles.keys, s.width), dkey = scratch.matrix(tiles.keys, s.width);
    const Matrix<T> value = scratch.matrix(tiles.keys, s.value), dvalue = scratch.matrix(tiles.keys, s.value);
    T* rest = scratch.take(attend_backward_scratch(tiles));
    for (int64_t h = key_head * s.group(); h < (key_head + 1) * s.group(); ++h) {
      for (int64_t t = 0; t < s.queries; ++t) {
        const int64_t at = ((b * s.queries + t) * s.heads + h) * s.value;
        layout.load_query(b, t, h, queries.row(t));
        fetch_ahead(dout + at, s.heads * s.value, s.value);
        fetch_ahead(out + at, s.heads * s.value, s.value);
        std::copy_n(dout + at, s.value, douts.row(t));
        delta[t] = dot_row(dout + at, out + at, s.value);
      }
      std::fill_n(dqueries.data, s.queries * s.width, T(0));
      const HeadGradient<T> head{{queries.data, s.width, s.width},
                                 {douts.data, s.value, s.value},
                                 lse + (b * s.heads + h) * s.queries,
                                 delta,
                                 dqueries};
      for (int64_t first = 0; first < s.keys; first += tiles.keys) {
        const int64_t count = std::min(tiles.keys, s.keys - first);
        for (int64_t j = 0; j < count; ++j) layout.load_key(b, first + j, key_head, key.row(j), value.row(j));
        attend_backward<T>(tiles, head, s.queries, s.offset(), {key.data, s.width, s.width},
                           {value.data, s.value, s.value}, first, count, rest, dkey, dvalue);
        for (int64_t j = 0; j < count; ++j) layout.store_key(b, first + j, h, dkey.row(j), dvalue.row(j));
      }
      for (int64_t t = 0; t < s.queries; ++t) layout.store_query(b, t, h, dqueries.row(t));
    }
  });
}

// [B, H, S, rope] -> [B, S, rope], the heads added in their order.
template <class T>
at::Tensor sum_over_heads(const at::Tensor& per_head) {
  const int64_t batch = per_head.size(0), heads = per_head.size(1), keys = per_head.size(2), width = per_head.size(3);
  at::Tensor sum = at::empty({batch, keys, width}, per_head.options());
  const T* in = per_head.const_data_ptr<T>();
  T* out = sum.mutable_data_ptr<T>();
  for_row_parts(batch * keys, row_parts(batch * keys, heads * width), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = in + (r / keys * heads * keys + r % keys) * width;
      std::copy_n(row, width, out + r * width);
      for (int64_t h = 1; h < heads; ++h) axpy_row(T(1), row + h * keys * width, width, out + r * width);
    }
  });
  return sum;
}

template <class T, class Layout>
Attended run_forward(const Layout& layout, at::IntArrayRef out_shape, const at::TensorOptions& options, bool with_lse) {
  const Shape& s = layout.shape;
  Attended result{at::empty(out_shape, options), {}};
  if (with_lse) result.lse = at::empty({s.batch, s.heads, s.queries}, options);
  forward<T>(layout, result.out.template mutable_data_ptr<T>(),
             with_lse ? result.lse.template mutable_data_ptr<T>() : nullptr, options);
  return result;
}

MlaInputs dense(const MlaInputs& in) {
  MlaInputs out = in;
  out.q_up = with_dense_rows(in.q_up);
  out.kv = with_dense_rows(in.kv);
  out.k_rope = with_dense_rows(in.k_rope);
  out.cos = in.cos.contiguous();
  out.sin = in.sin.contiguous();
  return out;
}

}  // namespace

Attended grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool with_lse) {
  const at::Tensor qd = with_dense_rows(q), kd = with_dense_rows(k), vd = with_dense_rows(v);
  return AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "causal_attention", [&] {
    return run_forward<scalar_t>(GroupedLayout<scalar_t>(qd, kd, vd), {q.size(0), q.size(1), q.size(2), v.size(3)},
                                 q.options(), with_lse);
  });
}

std::array<at::Tensor, 3> grouped_attention_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     const Attended& forward, const at::Tensor& dout) {
  const at::Tensor qd = with_dense_rows(q), kd = with_dense_rows(k), vd = with_dense_rows(v);
  at::Tensor dq = at::empty(q.sizes(), q.options());
  at::Tensor dk = at::empty(k.sizes(), k.options());
  at::Tensor dv = at::empty(v.sizes(), v.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "causal_attention_backward", [&] {
    GroupedLayout<scalar_t> layout(qd, kd, vd);
    layout.dq = dq.mutable_data_ptr<scalar_t>();
    layout.dk = dk.mutable_data_ptr<scalar_t>();
    layout.dv = dv.mutable_data_ptr<scalar_t>();
    backward<scalar_t>(layout, forward.out, forward.lse, dout);
  });
  return {dq, dk, dv};
}

Attended latent_attention(const MlaInputs& in, bool with_lse) {
  const MlaInputs d = dense(in);
  return AT_DISPATCH_FLOATING_TYPES(in.q_up.scalar_type(), "mla_attention", [&] {
    return run_forward<scalar_t>(LatentLayout<scalar_t>(d), {in.q_up.size(0), in.q_up.size(1), in.heads * in.value},
                                 in.q_up.options(), with_lse);
  });
}

std::array<at::Tensor, 3> latent_attention_backward(const MlaInputs& in, const Attended& forward,
                                                    const at::Tensor& dout) {
  const MlaInputs d = dense(in);
  at::Tensor dq = at::empty(in.q_up.sizes(), in.q_up.options());
  at::Tensor dkv = at::empty(in.kv.sizes(), in.kv.options());
  at::Tensor per_head = at::empty({in.kv.size(0), in.heads, in.kv.size(1), in.rope}, in.kv.options());
  at::Tensor dk_rope;
  AT_DISPATCH_FLOATING_TYPES(in.q_up.scalar_type(), "mla_attention_backward", [&] {
    LatentLayout<scalar_t> layout(d);
    layout.dq = dq.mutable_data_ptr<scalar_t>();
    layout.dkv = dkv.mutable_data_ptr<scalar_t>();
    layout.dk_rope = per_head.mutable_data_ptr<scalar_t>();
    backward<scalar_t>(layout, forward.out, forward.lse, dout);
    dk_rope = sum_over_heads<scalar_t>(per_head);
  });
  return {dq, dkv, dk_rope};
}

}  // namespace mythos::cpu
