// Twins of routing and of the routed experts.
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "step/twin_list.h"

#include <fmt/format.h>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;

Weight plain(const at::Tensor& t) { return {t, {}}; }

// The top K and their softmax as the definition says it, by sorting.
Tensors route_by_sort(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k) {
  const at::Tensor wide = logits.to(accumulate_type(logits.scalar_type()));
  const at::Tensor biased = bias.defined() ? wide.detach() + bias.to(wide.scalar_type()) : wide.detach();
  const at::Tensor experts = biased.argsort(/*stable=*/true, -1, /*descending=*/true).narrow(1, 0, top_k);
  const at::Tensor all = wide.softmax(-1).gather(-1, experts);
  return {all / all.sum(-1, true), experts};
}

std::vector<Twin> routes(TwinDraw& draw) {
  std::vector<Twin> all;
  struct Size {
    int64_t tokens, experts, top_k;
  };
  for (const Size s : {Size{1, 1, 1}, {1, 2, 2}, {5, 4, 2}, {63, 32, 2}, {64, 33, 3}, {65, 64, 8}, {300, 300, 3}}) {
    for (const bool biased : {false, true}) {
      const at::Tensor bias = biased ? draw.normal_wide({s.experts}) : at::Tensor();
      const int64_t k = s.top_k;
      all.push_back({fmt::format("{} x {}, top {}{}", s.tokens, s.experts, k, biased ? ", biased" : ""),
                     [bias, k](const Tensors& in) {
                       const Routing r = route(in[0], bias, k);
                       return Tensors{r.weights, r.experts};
                     },
                     [bias, k](const Tensors& in) { return route_by_sort(in[0], bias, k); },
                     {draw.normal({s.tokens, s.experts})},
                     4});
    }
  }
  return all;
}

// Sums that are not rounded: a composite form in fp32 of the same numbers.
std::vector<Twin> wide_products(TwinDraw& draw) {
  std::vector<Twin> all;
  struct Size {
    int64_t rows, in, out;
  };
  for (const Size s : {Size{1, 8, 1}, {3, 16, 5}, {40, 24, 32}}) {
    all.push_back({fmt::format("{} x {} to {}", s.rows, s.in, s.out),
                   [](const Tensors& in) { return Tensors{linear_wide(in[0], plain(in[1]))}; },
                   [](const Tensors& in) {
                     const auto wide = accumulate_type(in[0].scalar_type());
                     return Tensors{at::linear(in[0].to(wide), in[1].to(wide))};
                   },
                   {draw.normal({s.rows, s.in}), draw.normal({s.out, s.in})},
                   4});
  }
  return all;
}

std::vector<Twin> experts(TwinDraw& draw) {
  std::vector<Twin> all;
  struct Size {
    int64_t tokens, width, inner, experts, top_k, addends;
  };
  // More choices than a piece of the sort; experts nobody chose; widths that no vector load fits; one token.
  for (const Size s : {Size{1, 8, 8, 1, 1, 0},
                       {1, 16, 24, 4, 2, 1},
                       {9, 5, 3, 3, 2, 2},
                       {40, 16, 8, 64, 2, 0},
                       {257, 8, 8, 5, 1, 2},
                       {300, 24, 16, 7, 2, 3},
                       {130, 7, 9, 40, 4, 1}}) {
    // Distinct experts for a token, uneven over the experts: low numbers more often.
    const at::Tensor score = draw.normal_wide({s.tokens, s.experts}) -
                             at::arange(s.experts, at::TensorOptions(draw.device()).dtype(draw.wide())) * 0.1;
    const at::Tensor chosen = score.argsort(true, -1, true).narrow(1, 0, s.top_k).contiguous();
    Tensors inputs{draw.normal({s.tokens, s.width}), draw.normal({s.experts, 2 * s.inner, s.width}, 0.3),
                   draw.normal({s.experts, s.width, s.inner}, 0.3), draw.normal_wide({s.tokens, s.top_k}).abs()};
    for (int64_t i = 0; i < s.addends; ++i) inputs.push_back(draw.normal({s.tokens, s.width}));
    all.push_back({fmt::format("{} x {}, {} of {} experts of {}", s.tokens, s.width, s.top_k, s.experts, s.inner),
                   [chosen](const Tensors& in) {
                     return Tensors{routed_experts(in[0], plain(in[1]), plain(in[2]), chosen, in[3],
                                                   Tensors(in.begin() + 4, in.end()))};
                   },
                   [chosen](const Tensors& in) {
                     at::Tensor out = routed_experts_reference(in[0], in[1], in[2], chosen, in[3]);
                     for (size_t i = 4; i < in.size(); ++i) out = out + in[i];
                     return Tensors{out};
                   },
                   std::move(inputs), 4});
  }
  return all;
}

}  // namespace

std::vector<TwinOp> moe_twins() {
  return {{"linear_wide", wide_products}, {"route", routes}, {"routed_experts", experts}};
}

}  // namespace mythos
