#include "step/gemm_rate.h"

#include "base/machine.h"
#include "kernels/cross_entropy.h"
#include "kernels/device.h"
#include "kernels/product.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace mythos {

std::vector<GemmShape> gemm_shapes(const ModelConfig& c, int64_t tokens, int64_t loops, at::DeviceType device) {
  std::vector<GemmShape> shapes;
  // A layer y[tokens, out] = x W^T that `rows` rows pass at a time, `times` times a token.
  const auto layer = [&](Part part, int64_t rows, int64_t out, int64_t in, double times) {
    if (times <= 0) return;
    rows = std::max<int64_t>(1, rows);
    const double flops = 2.0 * static_cast<double>(out) * static_cast<double>(in) * times;
    shapes.push_back({part, rows, out, in, false, true, false, flops});
    shapes.push_back({part, rows, in, out, false, false, false, flops});
    shapes.push_back({part, out, in, rows, true, false, true, flops});
  };
  const auto attention = [&](double times) {
    const Part part = Part::projections;
    if (c.attn_type == AttentionType::mla) {
      layer(part, tokens, c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim, c.dim, times);
      layer(part, tokens, c.n_heads * c.qk_head_dim(), c.q_lora_rank, times);
      layer(part, tokens, c.n_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank, times);
      layer(part, tokens, c.dim, c.n_heads * c.v_head_dim, times);
    } else {
      layer(part, tokens, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim(), c.dim, times);
      layer(part, tokens, c.dim, c.n_heads * c.head_dim(), times);
    }
  };
  const auto blocks = static_cast<double>(c.prelude_layers + c.coda_layers);
  const auto n = static_cast<double>(loops);

  // The head works on a chunk of rows at a time (kernels/cross_entropy.h), on the CPU with a block of the vocabulary.
  if (device == at::kCPU) {
    const int64_t rows = cross_entropy_chunk_rows(c.vocab_size, tokens);
    const int64_t block = std::min(c.vocab_size, cross_entropy_block(c.vocab_size));
    const double head = 2.0 * static_cast<double>(c.vocab_size) * static_cast<double>(c.dim);
    shapes.push_back({Part::head, block, rows, c.dim, false, true, false, head});
    shapes.push_back({Part::head, rows, c.dim, block, true, false, true, head});
    shapes.push_back({Part::head, block, c.dim, rows, false, false, true, head});
  } else {
    layer(Part::head, cross_entropy_chunk_rows(c.vocab_size, tokens, device, 2), c.vocab_size, c.dim, 1);
  }

  attention(blocks + n);
  layer(Part::projections, tokens, 2 * c.dense_dim(), c.dim, blocks);
  layer(Part::projections, tokens, c.dim, c.dense_dim(), blocks);
  const auto chosen = n * static_cast<double>(c.n_experts_per_tok);
  const int64_t per_expert = tokens * c.n_experts_per_tok / c.n_experts;
  layer(Part::experts, per_expert, 2 * c.expert_dim, c.dim, chosen);
  layer(Part::experts, per_expert, c.dim, c.expert_dim, chosen);
  const double shared = n * static_cast<double>(c.n_shared_experts);
  layer(Part::experts, tokens, 2 * c.shared_dim(), c.dim, shared);
  layer(Part::experts, tokens, c.dim, c.shared_dim(), shared);
  return shapes;
}

GemmRate::GemmRate(std::vector<GemmShape> shapes, at::Device device, at::ScalarType dtype)
    : shapes_(std::move(shapes)),
      device_(device),
      dtype_(dtype),
      best_(shapes_.size(), 0.0),
      last_(shapes_.size(), 0.0) {}

void GemmRate::round(double seconds) {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device_).dtype(dtype_);
  enum class Form { libtorch, ours };
  constexpr std::array forms{Form::libtorch, Form::ours};
  double total = 0;
  for (const auto& s : shapes_) total += s.flops;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const GemmShape& s = shapes_[i];
    const at::Tensor a = at::full(s.transpose_a ? at::IntArrayRef{s.k, s.m} : at::IntArrayRef{s.m, s.k}, 0.5, options);
    const at::Tensor b = at::full(s.transpose_b ? at::IntArrayRef{s.n, s.k} : at::IntArrayRef{s.k, s.n}, 0.5, options);
    // On a device gradients of weights are summed in fp32.
    const bool wide = s.accumulate && dtype_ == at::kBFloat16 && !device_.is_cpu();
    at::Tensor c = at::zeros({s.m, s.n}, wide ? options.dtype(at::kFloat) : options);
    const auto product = [&, left = s.transpose_a ? a.t() : a, right = s.transpose_b ? b.t() : b](Form form) {
      if (form == Form::libtorch) {
        multiply_reference(c, left, right, s.accumulate);
      } else if (s.accumulate) {
        multiply_add(c, left, right);
      } else {
        multiply(c, left, right);
      }
    };
    const double share = seconds * s.flops / total / forms.size();
    last_[i] = 0;
    for (const Form form : forms) {
      const int at_once = device_.is_cpu() ? 1 : 20;  // before a device is waited for
      if (best_[i] == 0) product(form);               // warms up
      wait_for_device(device_);
      const auto begin = Clock::now();
      double spent = 0;
      int runs = 0;
      do {
        for (int r = 0; r < at_once; ++r) product(form);
        runs += at_once;
        wait_for_device(device_);
        spent = std::chrono::duration<double>(Clock::now() - begin).count();
      } while (spent < share);
      const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
      last_[i] = std::max(last_[i], flops * runs / spent);
    }
    best_[i] = std::max(best_[i], last_[i]);
  }
}

double GemmRate::weighted(const std::vector<double>& rates) const {
  double flops = 0, time = 0;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    flops += shapes_[i].flops;
    time += shapes_[i].flops / rates[i];
  }
  return flops / time;
}

double GemmRate::best() const { return weighted(best_); }
double GemmRate::last() const { return weighted(last_); }

std::string device_name(at::Device device) { return device.is_cpu() ? processor_name() : device.str(); }

std::string libtorch_version() {
  return fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
}

}  // namespace mythos
