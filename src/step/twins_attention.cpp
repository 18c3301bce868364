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

}  // namespace

std::vector<TwinOp> attention_twins() { return {{"rotate", rotations}}; }

}  // namespace mythos
