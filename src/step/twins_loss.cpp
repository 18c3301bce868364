// Twins of the head with cross-entropy and of the embedding, at the sizes where index arithmetic could go wrong.
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "step/twin_list.h"

#include <fmt/format.h>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;

struct HeadSize {
  int64_t rows, classes, chunk;  // chunk 0: the op's own
};

// Every vocabulary around a vector and a warp: rows begin at every alignment. Then longer ones, in chunks that do not
// divide the rows, and one longer than all lanes' first steps.
std::vector<HeadSize> head_sizes() {
  std::vector<HeadSize> all;
  for (int64_t classes = 1; classes <= 40; ++classes) all.push_back({3, classes, 0});
  for (const int64_t classes : {int64_t{1000}, int64_t{1001}, int64_t{4097}}) {
    for (const int64_t rows : {1, 3, 17}) all.push_back({rows, classes, rows == 17 ? 5 : 0});
  }
  all.push_back({2, 20001, 1});
  return all;
}

Twin head_twin(const std::string& size, const at::Tensor& targets, Tensors inputs, int64_t chunk) {
  const auto denominator = static_cast<double>(targets.numel());
  return {
      size,
      [=](const Tensors& in) {
        return Tensors{linear_cross_entropy(in[0], {in[1], {}}, targets, denominator, chunk)};
      },
      [=](const Tensors& in) { return Tensors{linear_cross_entropy_reference(in[0], in[1], targets, denominator)}; },
      std::move(inputs), 4};
}

std::vector<Twin> heads(TwinDraw& draw) {
  constexpr int64_t dim = 8;
  std::vector<Twin> all;
  for (const HeadSize& s : head_sizes()) {
    // The ends of the vocabulary and something in between; the last of many rows does not count.
    const at::Tensor targets = draw.below(s.classes, {s.rows});
    targets[0] = s.classes - 1;
    if (s.rows > 1) targets[1] = 0;
    if (s.rows > 3) targets[s.rows - 1] = ignored_target;
    all.push_back(head_twin(fmt::format("{} x {}, chunks of {}", s.rows, s.classes, s.chunk), targets,
                            {draw.normal({s.rows, dim}), draw.normal({s.classes, dim})}, s.chunk));
  }
  all.push_back(head_twin("3 x 37, all ignored", at::full({3}, ignored_target, draw.below(1, {1}).options()),
                          {draw.normal({3, dim}), draw.normal({37, dim})}, 2));
  all.push_back(head_twin("5 x 99, large logits", draw.below(99, {5}),
                          {draw.normal({5, dim}, 30), draw.normal({99, dim}, 10)}, 0));
  return all;
}

// The weight's gradient goes to a buffer of its own, in fp32 at least.
std::vector<Twin> heads_with_buffers(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const HeadSize& s : {HeadSize{3, 21, 2}, HeadSize{17, 333, 4}}) {
    const at::Tensor targets = draw.below(s.classes, {s.rows});
    const at::Tensor weight = draw.normal({s.classes, 8}), before = draw.normal_wide({s.classes, 8}, 0.1);
    const auto denominator = static_cast<double>(s.rows);
    all.push_back({fmt::format("{} x {}, chunks of {}", s.rows, s.classes, s.chunk),
                   [=](const Tensors& in) {
                     const at::Tensor buffer = before.clone();
                     const at::Tensor w = weight.detach().set_requires_grad(true);
                     const at::Tensor loss = linear_cross_entropy(in[0], {w, buffer}, targets, denominator, s.chunk);
                     return Tensors{loss.detach(), buffer};
                   },
                   [=](const Tensors& in) {
                     const at::Tensor h = in[0].detach(), w = weight.detach();
                     const at::Tensor logits = at::mm(h, w.t()).to(before.scalar_type());
                     const at::Tensor g = logits.softmax(1) - at::one_hot(targets, s.classes).to(logits.scalar_type());
                     const at::Tensor buffer = before + at::mm((g / denominator).t(), h.to(g.scalar_type()));
                     return Tensors{linear_cross_entropy_reference(h, w, targets, denominator), buffer};
                   },
                   {draw.normal({s.rows, 8})},
                   1});
  }
  return all;
}

struct TableSize {
  int64_t ids, rows, width;
};

std::vector<Twin> embeddings(TwinDraw& draw) {
  std::vector<Twin> all;
  // One id alone, runs of one to many, all alike (a table of one row), widths around vectors and teams.
  for (const TableSize& s :
       {TableSize{1, 1, 1}, TableSize{1, 9, 8}, TableSize{2, 1, 3}, TableSize{9, 1, 8}, TableSize{33, 5, 7},
        TableSize{64, 3, 64}, TableSize{100, 40, 520}, TableSize{17, 1000, 1032}, TableSize{300, 11, 33}}) {
    const at::Tensor ids = draw.below(s.rows, {s.ids});
    const auto size = fmt::format("{} ids, {} x {}", s.ids, s.rows, s.width);
    all.push_back({size,
                   [ids](const Tensors& in) {
                     return Tensors{embedding(ids, {in[0], {}})};
                   },
                   [ids](const Tensors& in) { return Tensors{at::index_select(in[0], 0, ids)}; },
                   {draw.normal({s.rows, s.width})},
                   4});
  }
  return all;
}

// The same into a buffer in fp32 at least, against sums in fp64.
std::vector<Twin> embeddings_with_buffers(TwinDraw& draw) {
  std::vector<Twin> all;
  for (const TableSize& s : {TableSize{5, 3, 3}, TableSize{50, 7, 16}, TableSize{200, 300, 72}}) {
    const at::Tensor ids = draw.below(s.rows, {2, s.ids});
    const at::Tensor table = draw.normal({s.rows, s.width}), before = draw.normal_wide({s.rows, s.width});
    const at::Tensor dy = draw.normal({2, s.ids, s.width});
    all.push_back({fmt::format("2 x {} ids, {} x {}", s.ids, s.rows, s.width),
                   [=](const Tensors&) {
                     const at::Tensor buffer = before.clone();
                     const at::Tensor leaf = table.detach().set_requires_grad(true);
                     embedding(ids, {leaf, buffer}).backward(dy);
                     return Tensors{buffer};
                   },
                   [=](const Tensors&) {
                     const at::Tensor sum = before.to(at::kDouble);
                     sum.index_add_(0, ids.view({-1}), dy.view({-1, s.width}).to(at::kDouble));
                     return Tensors{sum.to(before.scalar_type())};
                   },
                   {},
                   1});
  }
  return all;
}

}  // namespace

std::vector<TwinOp> loss_twins() {
  return {{"linear_cross_entropy", heads},
          {"linear_cross_entropy into a buffer", heads_with_buffers},
          {"embedding", embeddings},
          {"embedding into a buffer", embeddings_with_buffers}};
}

}  // namespace mythos
