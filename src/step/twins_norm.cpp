// Twins of the norms, at the sizes where index arithmetic could go wrong.
#include "kernels/loop.h"
#include "kernels/rms_norm.h"
#include "step/twin_list.h"

#include <fmt/format.h>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;

Weight plain(const at::Tensor& t) { return {t, {}}; }

// Around a lane's vector, a warp and a block of threads; more rows than parts that sum a weight's gradient.
struct Rows {
  int64_t count, width;
  [[nodiscard]] std::string text() const { return fmt::format("{} x {}", count, width); }
};
constexpr Rows row_sizes[] = {{1, 3},  {1, 8},    {3, 31},   {2, 32},    {5, 33},    {300, 40},
                              {2, 64}, {7, 1000}, {4, 1024}, {17, 1032}, {513, 128}, {2, 2050}};

std::vector<Twin> rms_norms(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const Rows& s : row_sizes) {
    all.push_back({s.text(),
                   [](const Tensors& in) { return Tensors{rms_norm(in[0], plain(in[1]))}; },
                   [](const Tensors& in) { return Tensors{rms_norm_reference(in[0], in[1])}; },
                   {draw.normal({s.count, s.width}), draw.normal({s.width})},
                   4});
  }
  // Columns of a wider tensor, as the parts of a joined projection are.
  all.push_back({"5 x 24 of 72",
                 [](const Tensors& in) { return Tensors{rms_norm(in[0].narrow(1, 8, 24), plain(in[1]))}; },
                 [](const Tensors& in) { return Tensors{rms_norm_reference(in[0].narrow(1, 8, 24), in[1])}; },
                 {draw.normal({5, 72}), draw.normal({24})},
                 4});
  return all;
}

std::vector<Twin> residual_norms(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const Rows& s : row_sizes) {
    all.push_back({s.text(),
                   [](const Tensors& in) {
                     const auto r = residual_norm(in[0], in[1], plain(in[2]));
                     return Tensors{r.sum, r.y};
                   },
                   [](const Tensors& in) {
                     const auto r = residual_norm_reference(in[0], in[1], in[2]);
                     return Tensors{r.sum, r.y};
                   },
                   {draw.normal({s.count, s.width}), draw.normal({s.count, s.width}), draw.normal({s.width})},
                   4});
  }
  return all;
}

std::vector<Twin> loop_norms(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const Rows& s : row_sizes) {
    const at::Tensor signal = draw.normal_wide({s.width});
    all.push_back({s.text(),
                   [signal](const Tensors& in) { return Tensors{loop_norm(in[0], signal, in[1], plain(in[2]))}; },
                   [signal](const Tensors& in) { return Tensors{loop_norm_reference(in[0], signal, in[1], in[2])}; },
                   {draw.normal({s.count, s.width}), draw.normal({s.count, s.width}), draw.normal({s.width})},
                   4});
  }
  return all;
}

}  // namespace

std::vector<TwinOp> norm_twins() {
  return {{"rms_norm", rms_norms}, {"residual_norm", residual_norms}, {"loop_norm", loop_norms}};
}

}  // namespace mythos
