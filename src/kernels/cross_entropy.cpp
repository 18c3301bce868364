#include "kernels/cross_entropy.h"

#include "kernels/cpu/softmax.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"
#include "kernels/part.h"
#include "kernels/product.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

namespace mythos {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the op works on, chunk by chunk. Undefined gradients are not wanted.
struct Head {
  at::Tensor hidden;   // [N, D]
  at::Tensor weight;   // [V, D]
  at::Tensor targets;  // int64 [N]
  at::Tensor dh;       // [N, D], written
  at::Tensor dw;       // [V, D], added to
  double scale = 1;    // of the gradients
};

// A chunk of rows from composite operations: returns the chunk's loss sum.
at::Tensor chunk_reference(const Head& head, int64_t begin, int64_t rows) {
  const at::Tensor h = head.hidden.narrow(0, begin, rows);
  const at::Tensor targets = head.targets.narrow(0, begin, rows);
  const at::Tensor logits = at::mm(h, head.weight.t());
  const at::Tensor wide = logits.to(accumulate_type(logits.scalar_type()));
  const at::Tensor counted = targets.ne(ignored_target);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor lse = wide.logsumexp(1, true);
  const at::Tensor losses = (lse - wide.gather(1, index)).squeeze(1);
  if (head.dh.defined()) {
    at::Tensor gradient = (wide - lse).exp();
    gradient.scatter_add_(1, index, at::full({rows, 1}, -1, gradient.options()));
    gradient.mul_(counted.to(wide.scalar_type()).mul(head.scale).unsqueeze(1));
    const at::Tensor narrow = gradient.to(logits.scalar_type());
    at::Tensor out = head.dh.narrow(0, begin, rows);
    at::mm_out(out, narrow, head.weight);
    if (head.dw.defined()) multiply_add(head.dw, narrow.t(), h);
  }
  return at::where(counted, losses, at::zeros({}, losses.options())).sum().to(at::kDouble);
}

// The CPU's form. Logits are kept as [V, rows]: the products are faster so, and the softmax of neighbouring positions
// fills the vector registers. Each block of the vocabulary turns into exp(logit - block's largest) while it is in the
// cache; when all blocks' sums are known, one factor per block and position turns it into the gradient, just before the
// two products that consume it. Threads share out the blocks, and each sums its own gradient of the hidden states.
template <class T>
class BlockedHead {
 public:
  BlockedHead(const Head& head, int64_t chunk_rows)
      : head_(head),
        weight_(head.weight.detach()),
        v_(head.weight.size(0)),
        block_(cross_entropy_block(v_)),
        blocks_((v_ + block_ - 1) / block_),
        parts_(std::min<int64_t>(blocks_, at::get_num_threads())) {
    const auto options = weight_.options();
    const bool gradients = head.dh.defined();
    logits_ = at::empty({gradients ? v_ : parts_ * block_, chunk_rows}, options);
    top_ = at::empty({blocks_, chunk_rows}, options);
    sum_ = at::empty({blocks_, chunk_rows}, options);
    if (gradients) dh_parts_ = at::empty({parts_ - 1, chunk_rows, weight_.size(1)}, options);
  }

  // Returns the chunk's loss sum.
  double chunk(int64_t begin, int64_t rows) {
    const at::Tensor h = head_.hidden.detach().narrow(0, begin, rows);
    const auto* targets = head_.targets.const_data_ptr<int64_t>() + begin;
    std::vector<double> at_target(static_cast<size_t>(rows), 0.0);
    for_blocks([&](int64_t part, int64_t b, bool) {
      const auto [first, size] = block(b);
      const at::Tensor tile = tile_of(part, b, size, rows);
      multiply(tile, weight_.narrow(0, first, size), h.t());
      auto* values = tile.mutable_data_ptr<T>();
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t place = targets[r] - first;
        if (place >= 0 && place < size) at_target[static_cast<size_t>(r)] = values[place * rows + r];
      }
      cpu::exp_columns<T>(values, size, rows, rows, row(top_, b, rows), row(sum_, b, rows));
    });
    double loss = 0;
    for (int64_t r = 0; r < rows; ++r) {
      double top = row(top_, 0, rows)[r];
      for (int64_t b = 1; b < blocks_; ++b) top = std::max<double>(top, row(top_, b, rows)[r]);
      double sum = 0;
      for (int64_t b = 0; b < blocks_; ++b) {
        sum += static_cast<double>(row(sum_, b, rows)[r]) * std::exp(static_cast<double>(row(top_, b, rows)[r]) - top);
      }
      const bool counted = targets[r] != ignored_target;
      if (counted) loss += top - at_target[static_cast<size_t>(r)] + std::log(sum);
      for (int64_t b = 0; b < blocks_; ++b) {  // top_ becomes the factors
        T& factor = row(top_, b, rows)[r];
        factor = counted ? static_cast<T>(std::exp(static_cast<double>(factor) - top) / sum * head_.scale) : T(0);
      }
    }
    if (head_.dh.defined()) gradients(h, begin, rows, targets);
    return loss;
  }

 private:
  void gradients(const at::Tensor& h, int64_t begin, int64_t rows, const int64_t* targets) {
    const at::Tensor dh = head_.dh.narrow(0, begin, rows);
    const auto dh_of = [&](int64_t part) { return part == 0 ? dh : dh_parts_.select(0, part - 1).narrow(0, 0, rows); };
    for_blocks([&](int64_t part, int64_t b, bool is_first) {
      const auto [first, size] = block(b);
      const at::Tensor tile = tile_of(part, b, size, rows);
      auto* values = tile.mutable_data_ptr<T>();
      const T* factors = row(top_, b, rows);
      for (int64_t i = 0; i < size; ++i) cpu::multiply_row<T>(factors, rows, values + i * rows);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t place = targets[r] - first;
        if (place >= 0 && place < size) values[place * rows + r] -= static_cast<T>(head_.scale);
      }
      const at::Tensor w = weight_.narrow(0, first, size);
      if (is_first) {
        multiply(dh_of(part), tile.t(), w);
      } else {
        multiply_add(dh_of(part), tile.t(), w);
      }
      if (head_.dw.defined()) multiply_add(head_.dw.narrow(0, first, size), tile, h);
    });
    for (int64_t part = 1; part < parts_; ++part) at::Tensor(dh).add_(dh_of(part));
  }

  // Calls body(part, block, whether it is the part's first) for every block, those of a part in order on one thread.
  template <class Body>
  void for_blocks(const Body& body) {
    for_row_parts(blocks_, parts_, [&](int64_t part, int64_t from, int64_t to) {
      const at::NoGradGuard no_grad;  // of this thread
      for (int64_t b = from; b < to; ++b) body(part, b, b == from);
    });
  }
  [[nodiscard]] std::pair<int64_t, int64_t> block(int64_t b) const {
    return {b * block_, std::min(block_, v_ - b * block_)};
  }
  // Rows are packed without gaps, also in a last chunk that has fewer of them. Without gradients a part has one tile.
  [[nodiscard]] at::Tensor tile_of(int64_t part, int64_t b, int64_t size, int64_t rows) const {
    const int64_t offset = (head_.dh.defined() ? b : part) * block_ * rows;
    return logits_.view(-1).narrow(0, offset, size * rows).view({size, rows});
  }
  static T* row(const at::Tensor& table, int64_t b, int64_t rows) { return table.mutable_data_ptr<T>() + b * rows; }

  Head head_;
  at::Tensor weight_;
  int64_t v_, block_, blocks_, parts_;
  at::Tensor logits_, top_, sum_, dh_parts_;
};

// The device's form: logits turn into their gradient in their own memory. The losses of all rows are summed at the
// end, in one order whatever the chunks.
at::Tensor on_device(const Head& head, int64_t chunk_rows) {
  const int64_t n = head.hidden.size(0), classes = head.weight.size(0);
  const at::Tensor hidden = head.hidden.detach(), weight = head.weight.detach();
  const at::Tensor memory = at::empty({std::min(chunk_rows, n) * classes}, hidden.options());
  const at::Tensor losses = at::empty({n}, hidden.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < n; begin += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, n - begin);
    const at::Tensor logits = memory.narrow(0, 0, rows * classes).view({rows, classes});
    const at::Tensor h = hidden.narrow(0, begin, rows);
    multiply(logits, h, weight.t());
    cuda::cross_entropy(logits, head.targets.narrow(0, begin, rows), losses.narrow(0, begin, rows), head.scale,
                        head.dh.defined());
    if (!head.dh.defined()) continue;
    multiply(head.dh.narrow(0, begin, rows), logits, weight);
    if (head.dw.defined()) multiply_add(head.dw, logits.t(), h);
  }
  return cuda::sum_in_order(losses);
}

// The loss sum; gradients on the way.
at::Tensor whole(const Head& head, int64_t chunk_rows) {
  const int64_t n = head.hidden.size(0);
  const auto chunks = [&](const auto& body) {
    for (int64_t begin = 0; begin < n; begin += chunk_rows) body(begin, std::min(chunk_rows, n - begin));
  };
  if (cuda::applies(head.hidden)) return on_device(head, chunk_rows);
  if (!rows_apply(head.hidden)) {
    at::Tensor total = at::zeros({}, head.hidden.options().dtype(at::kDouble));
    chunks([&](int64_t begin, int64_t rows) { total.add_(chunk_reference(head, begin, rows)); });
    return total;
  }
  double total = 0;
  AT_DISPATCH_FLOATING_TYPES(head.hidden.scalar_type(), "linear_cross_entropy", [&] {
    BlockedHead<scalar_t> blocked(head, std::min(chunk_rows, n));
    chunks([&](int64_t begin, int64_t rows) { total += blocked.chunk(begin, rows); });
  });
  return at::scalar_tensor(total, head.hidden.options().dtype(at::kDouble));
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Variable forward(AutogradContext* ctx, const Variable& hidden, const Variable& weight,
                          const GradientBuffer& buffer_of_weight, const at::Tensor& targets, double denominator,
                          int64_t chunk_rows) {
    const PartScope scope(Part::head);
    const at::Tensor& grad = buffer_of_weight.tensor;
    const bool weight_needs = weight.requires_grad();
    const bool needs_gradient = hidden.requires_grad() || weight_needs;
    Head head{hidden.contiguous(), weight, targets, {}, {}, 1.0 / denominator};
    if (needs_gradient) head.dh = at::empty_like(head.hidden);
    if (weight_needs) head.dw = grad.defined() ? grad : at::zeros_like(weight);
    const at::Tensor total = whole(head, chunk_rows);
    ctx->saved_data["dh"] = head.dh;
    ctx->saved_data["dw"] = grad.defined() ? at::Tensor() : head.dw;
    ctx->saved_data["in_place"] = grad.defined();
    return (total * head.scale).to(accumulate_type(hidden.scalar_type()));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor dh = ctx->saved_data["dh"].toTensor();
    at::Tensor dw = ctx->saved_data["dw"].toTensor();
    const bool in_place = ctx->saved_data["in_place"].toBool();
    if (in_place && grads[0].device().is_cpu()) {
      TORCH_CHECK(grads[0].item<double>() == 1.0,
                  "linear_cross_entropy added to the weight's gradient in its forward "
                  "pass: scale the loss by its denominator, not by the gradient");
    }
    if (!in_place) {
      dh = dh * grads[0].to(dh.scalar_type());
      if (dw.defined()) dw = dw * grads[0].to(dw.scalar_type());
    }
    return {dh, dw, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t cross_entropy_block(int64_t vocabulary) {
  // A sixteenth of a small vocabulary, so that threads have something to share out.
  return std::clamp<int64_t>((vocabulary / 16 + 15) / 16 * 16, 64, 1024);
}

int64_t cross_entropy_chunk_rows(int64_t vocabulary, int64_t tokens, at::DeviceType device, int64_t element) {
  const int64_t classes = std::max<int64_t>(vocabulary, 1);
  const int64_t most = device == at::kCPU ? std::clamp<int64_t>(52'000'000 / classes, 64, 1024)
                                          : std::max<int64_t>(1'250'000'000 / (classes * element) / 16 * 16, 64);
  const int64_t chunks = std::max<int64_t>(1, (tokens + most - 1) / most);
  const int64_t rows = (tokens + chunks - 1) / chunks;
  return (rows + 15) / 16 * 16;
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& targets,
                                double denominator, int64_t chunk_rows) {
  TORCH_CHECK(hidden.dim() == 2 && targets.dim() == 1 && hidden.size(0) == targets.size(0),
              "linear_cross_entropy takes hidden [N, D] and targets [N], got ", hidden.sizes(), " and ",
              targets.sizes());
  if (targets.device().is_cpu() && targets.numel() > 0) {
    // The kernel writes at the target's place in a row of logits.
    const at::Tensor counted = targets.masked_fill(targets.eq(ignored_target), 0);
    const auto [low, high] = counted.aminmax();
    TORCH_CHECK_INDEX(low.item<int64_t>() >= 0 && high.item<int64_t>() < weight.value.size(0),
                      "linear_cross_entropy: targets from ", low.item<int64_t>(), " to ", high.item<int64_t>(),
                      " do not fit ", weight.value.size(0), " classes");
  }
  if (chunk_rows <= 0)
    chunk_rows = cross_entropy_chunk_rows(weight.value.size(0), hidden.size(0), hidden.device().type(),
                                          static_cast<int64_t>(hidden.element_size()));
  const bool gradients = at::GradMode::is_enabled();
  const at::Tensor value = gradients ? weight.value : weight.value.detach();
  return LinearCrossEntropy::apply(gradients ? hidden : hidden.detach(), value,
                                   GradientBuffer{gradients ? weight.grad : at::Tensor()}, targets.contiguous(),
                                   denominator > 0 ? denominator : 1.0, chunk_rows);
}

at::Tensor linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                          double denominator) {
  const at::Tensor logits = at::linear(hidden, weight).to(accumulate_type(hidden.scalar_type()));
  const at::Tensor losses = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, ignored_target);
  return losses / (denominator > 0 ? denominator : 1.0);
}

}  // namespace mythos
