// Twins of attention and of rotary positions, at the sizes where index arithmetic could go wrong.
#include "kernels/attention.h"
#include "step/twin_list.h"

#include <fmt/format.h>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;

RotaryTable::Slice positions(const TwinDraw& draw, int64_t width, int64_t count) {
  return RotaryTable(width, 10000.0, draw.device()).slice(3, count);
}

std::vector<Twin> rotations(TwinDraw& draw) {
  struct Size {
    int64_t batch, count, heads, width;
  };
  std::vector<Twin> all;
  for (const Size& s : {Size{1, 1, 1, 2}, Size{2, 2, 3, 6}, Size{1, 17, 5, 8}, Size{3, 17, 2, 32}, Size{2, 5, 7, 34},
                        Size{1, 3, 16, 128}}) {
    const auto at = positions(draw, s.width, s.count);
    all.push_back({fmt::format("{} x {} x {} x {}", s.batch, s.count, s.heads, s.width),
                   [at](const Tensors& in) { return Tensors{rotate(in[0], at)}; },
                   [at](const Tensors& in) { return Tensors{rotate_reference(in[0], at)}; },
                   {draw.normal({s.batch, s.count, s.heads, s.width})}});
    // Columns of a joined projection; and heads that lie outside of positions.
    all.push_back({all.back().size + " of wider rows",
                   [at, s](const Tensors& in) { return Tensors{rotate(in[0].narrow(2, 1, s.heads), at)}; },
                   [at, s](const Tensors& in) { return Tensors{rotate_reference(in[0].narrow(2, 1, s.heads), at)}; },
                   {draw.normal({s.batch, s.count, s.heads + 2, s.width})}});
    all.push_back({fmt::format("{} x {} x {} x {} heads first", s.batch, s.count, s.heads, s.width),
                   [at](const Tensors& in) { return Tensors{rotate(in[0].transpose(1, 2), at)}; },
                   [at](const Tensors& in) { return Tensors{rotate_reference(in[0].transpose(1, 2), at)}; },
                   {draw.normal({s.batch, s.heads, s.count, s.width})}});
  }
  return all;
}

struct MlaSize {
  int64_t batch, count;
  MlaHeads heads;
  [[nodiscard]] std::string text() const {
    return fmt::format("{} x {}, {} heads of {} + {}, {}", batch, count, heads.heads, heads.nope, heads.rope,
                       heads.value);
  }
};
constexpr MlaSize mla_sizes[] = {{1, 1, {1, 2, 2, 1}},     {1, 2, {1, 1, 2, 1}},     {1, 2, {3, 2, 2, 4}},
                                 {2, 17, {2, 8, 8, 16}},   {1, 17, {5, 16, 8, 8}},   {3, 5, {7, 15, 2, 33}},
                                 {2, 17, {3, 31, 32, 33}}, {1, 67, {2, 32, 32, 64}}, {2, 33, {4, 24, 8, 24}},
                                 {1, 130, {3, 64, 32, 64}}};

std::vector<Twin> latent_attentions(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const MlaSize& s : mla_sizes) {
    const MlaHeads& h = s.heads;
    const auto at = positions(draw, h.rope, s.count);
    const int64_t q = h.heads * (h.nope + h.rope), kv = h.heads * (h.nope + h.value);
    all.push_back({s.text(),
                   [at, h](const Tensors& in) { return Tensors{mla_attention(in[0], in[1], in[2], at, h)}; },
                   [at, h](const Tensors& in) { return Tensors{mla_attention_reference(in[0], in[1], in[2], at, h)}; },
                   {draw.normal({s.batch, s.count, q}), draw.normal({s.batch, s.count, kv}),
                    draw.normal({s.batch, s.count, h.rope})},
                   4});
    // Columns of wider rows.
    const auto columns = [q, kv, h](const at::Tensor& t) {
      return Tensors{t.narrow(2, 1, q), t.narrow(2, 1 + q, kv), t.narrow(2, 1 + q + kv, h.rope)};
    };
    all.push_back({s.text() + ", of wider rows",
                   [=](const Tensors& in) {
                     const Tensors c = columns(in[0]);
                     return Tensors{mla_attention(c[0], c[1], c[2], at, h)};
                   },
                   [=](const Tensors& in) {
                     const Tensors c = columns(in[0]);
                     return Tensors{mla_attention_reference(c[0], c[1], c[2], at, h)};
                   },
                   {draw.normal({s.batch, s.count, q + kv + h.rope + 3})},
                   4});
  }
  return all;
}

std::vector<Twin> grouped_attentions(TwinDraw& draw) {
  struct Size {
    int64_t batch, count, heads, key_heads, width;
  };
  std::vector<Twin> all;
  for (const Size& s : {Size{1, 1, 1, 1, 1}, Size{2, 2, 3, 1, 7}, Size{1, 17, 4, 2, 8}, Size{3, 17, 6, 2, 33},
                        Size{2, 67, 4, 4, 32}, Size{1, 130, 9, 3, 64}}) {
    // As they are cut from one projection.
    const auto parts = [s](const at::Tensor& t) { return t.split_with_sizes({s.heads, s.key_heads, s.key_heads}, 2); };
    all.push_back({fmt::format("{} x {}, {} heads on {} of {}", s.batch, s.count, s.heads, s.key_heads, s.width),
                   [parts](const Tensors& in) {
                     const auto p = parts(in[0]);
                     return Tensors{causal_attention(p[0], p[1], p[2])};
                   },
                   [parts](const Tensors& in) {
                     const auto p = parts(in[0]);
                     return Tensors{causal_attention_reference(p[0], p[1], p[2])};
                   },
                   {draw.normal({s.batch, s.count, s.heads + 2 * s.key_heads, s.width})},
                   4});
  }
  return all;
}

}  // namespace

std::vector<TwinOp> attention_twins() {
  return {{"rotate", rotations}, {"mla_attention", latent_attentions}, {"causal_attention", grouped_attentions}};
}

}  // namespace mythos
