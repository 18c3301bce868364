#include "plan/roofline.h"

#include "base/units.h"
#include "kernels/cross_entropy.h"
#include "model/flops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mythos {
namespace {

constexpr double el = 2;   // bfloat16
constexpr double sum = 4;  // fp32

double real(int64_t n) { return static_cast<double>(n); }

class Builder {
 public:
  Builder(const Gpu& gpu, const RooflineRequest& r)
      : r_(r), c_(r.model), peak_(gpu.bf16_flops), bandwidth_(gpu.bandwidth) {
    n_ = real(r.micro_batch * r.seq_len);
    loops_ = real(r.loops > 0 ? r.loops : c_.max_loop_iters);
    again_ = r.recompute == Recompute::loop ? 1 : 0;
  }

  std::vector<RooflinePart> parts() {
    head();
    const auto dense = real(c_.prelude_layers + c_.coda_layers);
    blocks(dense);
    blocks(loops_);
    products("projections", dense, n_, 2 * real(c_.dense_dim()), real(c_.dim));
    products("projections", dense, n_, real(c_.dim), real(c_.dense_dim()));
    swiglu("norms, activations, residuals", dense, n_, real(c_.dense_dim()));
    moved("norms, activations, residuals", dense, 3 * row(), 3 * row());  // the second residual
    experts();
    update();
    const double parameters = real(parameter_count(c_));
    // Weights, moments and gradients read, the first two written; the narrow copy; gradients cleared and their norm.
    const double optimizer = parameters * (6 * sum + sum + el + 2 * sum) / real(r_.grad_accum);
    moved("optimizer", 1, optimizer, 0);
    return std::move(parts_);
  }

 private:
  double row() const { return el * n_ * real(c_.dim); }

  RooflinePart& part(const std::string& name) {
    const auto found =
        std::find_if(parts_.begin(), parts_.end(), [&](const RooflinePart& p) { return p.name == name; });
    if (found != parts_.end()) return *found;
    parts_.push_back({name, 0, 0, 0, 0, false});
    memory_.push_back(0);
    return parts_.back();
  }

  // An operation done `times` times: it takes as long as the slower of its two.
  void operation(const std::string& name, double times, double flops, double bytes, double efficiency) {
    RooflinePart& p = part(name);
    const double compute = flops / (peak_ * efficiency), memory = bytes / (bandwidth_ * r_.assumed.bandwidth);
    p.flops += times * flops;
    p.bytes += times * bytes;
    p.limit_s += times * std::max(flops / peak_, bytes / bandwidth_);
    p.estimate_s += times * std::max(compute, memory);
    double& by_memory = memory_[static_cast<size_t>(&p - parts_.data())];
    if (memory > compute) by_memory += times * memory;
    p.by_memory = by_memory > p.estimate_s / 2;
  }
  void moved(const std::string& name, double times, double forward, double backward) {
    operation(name, times * (1 + again_), 0, forward, 1);
    operation(name, times, 0, backward, 1);
  }
  double efficiency_of(const std::string& name) const {
    return name == "head and loss" ? r_.assumed.head_products
           : name == "experts"     ? r_.assumed.grouped_products
                                   : r_.assumed.other_products;
  }
  // y [m, n] = x [m, k] W^T, the gradient of x, and that of W, which is added to fp32 sums. `weights`: matrices like W
  // whose rows m shares out (experts).
  void products(const std::string& name, double times, double m, double n, double k, double weights = 1,
                bool recomputed = true) {
    const double flops = 2 * m * n * k, in = el * m * k, out = el * m * n, w = el * n * k * weights;
    const double e = efficiency_of(name);
    operation(name, times * (1 + (recomputed ? again_ : 0)), flops, in + w + out, e);
    operation(name, times, flops, out + w + in, e);
    operation(name, times, flops, out + in + 2 * sum * n * k * weights, e);
  }
  void swiglu(const std::string& name, double times, double m, double width) {
    moved(name, times, 3 * el * m * width, 6 * el * m * width);
  }

  void head() {
    const double v = real(c_.vocab_size);
    // A chunk of rows at a time passes all of the head's weights, and adds to all of their gradient.
    const int64_t tokens = r_.micro_batch * r_.seq_len;
    const double chunks = std::ceil(n_ / real(cross_entropy_chunk_rows(c_.vocab_size, tokens, at::kCUDA, 2)));
    products("head and loss", chunks, n_ / chunks, v, real(c_.dim), 1, false);
    // Largest and sum, then the gradient in place: the second reading comes from the L2 cache.
    operation("head and loss", 1, 0, 2 * el * n_ * v, 1);
    // The embedding, the final norm.
    moved("norms, activations, residuals", 1, 4 * row(), 3 * row() + row() * 2 * sum / el);
  }

  // Attention of a block with its norms, `times` blocks.
  void blocks(double times) {
    const double d = real(c_.dim), heads = real(c_.n_heads);
    const double qk = real(c_.qk_head_dim()), value = real(c_.value_head_dim());
    double heads_moved = 0;
    if (c_.attn_type == AttentionType::mla) {
      const double q_rank = real(c_.q_lora_rank), kv_rank = real(c_.kv_lora_rank), rope = real(c_.qk_rope_head_dim);
      products("projections", times, n_, q_rank + kv_rank + rope, d);
      products("projections", times, n_, heads * qk, q_rank);
      products("projections", times, n_, heads * (real(c_.qk_nope_head_dim) + value), kv_rank);
      moved("norms, activations, residuals", times, 2 * el * n_ * (q_rank + kv_rank), 3 * el * n_ * (q_rank + kv_rank));
      heads_moved = heads * (2 * qk + 2 * qk + 2 * value);
    } else {
      products("projections", times, n_, (heads + 2 * real(c_.n_kv_heads)) * qk, d);
      heads_moved = 2 * (heads + real(c_.n_kv_heads)) * qk;
    }
    products("projections", times, n_, d, heads * value);
    moved("norms, activations, residuals", times, el * n_ * heads_moved, el * n_ * heads_moved);
    // Half of the scores are masked. The backward pass makes them again: five products for the forward pass's two.
    const double flops = n_ * (real(r_.seq_len) + 1) * heads * (qk + value);
    const double bytes = el * n_ * heads * (2 * qk + 2 * value);
    operation("attention", times * (1 + again_), flops, bytes, r_.assumed.attention);
    operation("attention", times, 2.5 * flops, 2 * bytes, r_.assumed.attention);
    // The block's norm, and residual and norm in one.
    moved("norms, activations, residuals", times, 2 * row() + 4 * row(), 3 * row() + 4 * row());
  }

  void experts() {
    const double d = real(c_.dim), k = real(c_.n_experts_per_tok), width = real(c_.expert_dim),
                 all = real(c_.n_experts);
    products("experts", loops_, n_ * k, 2 * width, d, all);
    products("experts", loops_, n_ * k, d, width, all);
    swiglu("experts", loops_, n_ * k, width);
    // To the experts and back, with the shared experts' output and the residual; their gradients.
    moved("experts", loops_, row() * (2 * k + k + 3), row() * (4 * k + k + 1));
    for (int64_t s = 0; s < c_.n_shared_experts; ++s) {
      products("experts", loops_, n_, 2 * real(c_.shared_dim()), d);
      products("experts", loops_, n_, d, real(c_.shared_dim()));
      swiglu("experts", loops_, n_, real(c_.shared_dim()));
    }
    products("experts", loops_, n_, all, d);  // the router
  }

  void update() {
    const double wide = n_ * real(c_.dim) * sum;
    products("projections", loops_, n_, real(c_.lora_rank), real(c_.dim));
    moved("norms, activations, residuals", loops_, 3 * row(),
          4 * row() + 6 * row());  // the loop's norm; sums of gradients
    operation("norms, activations, residuals", loops_, 4 * n_ * real(c_.lora_rank) * real(c_.dim), 4 * row() + 2 * wide,
              1);
    operation("norms, activations, residuals", loops_, 8 * n_ * real(c_.lora_rank) * real(c_.dim), 7 * row() + wide, 1);
  }

  const RooflineRequest& r_;
  const ModelConfig& c_;
  double peak_, bandwidth_;
  double n_ = 0, loops_ = 0, again_ = 0;
  std::vector<RooflinePart> parts_;
  std::vector<double> memory_;
};

}  // namespace

double Roofline::limit_seconds() const {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double s, const RooflinePart& p) { return s + p.limit_s; });
}
double Roofline::estimate_seconds() const {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double s, const RooflinePart& p) { return s + p.estimate_s; });
}
const RooflinePart& Roofline::next() const {
  return *std::max_element(parts.begin(), parts.end(), [](const RooflinePart& a, const RooflinePart& b) {
    return a.estimate_s - a.limit_s < b.estimate_s - b.limit_s;
  });
}

Roofline roofline(const Gpu& gpu, const RooflineRequest& request) {
  Roofline r;
  r.gpu = gpu.name;
  r.assumed = request.assumed;
  r.peak = gpu.bf16_flops;
  r.bandwidth = gpu.bandwidth;
  r.tokens = real(request.micro_batch * request.seq_len);
  const int64_t loops = request.loops > 0 ? request.loops : request.model.max_loop_iters;
  r.flops_per_token = flops_per_token(request.model, request.seq_len, loops).train;
  r.parts = Builder(gpu, request).parts();
  return r;
}

std::string roofline_text(const Roofline& r) {
  std::string text =
      fmt::format("roofline of a micro-step of {} tokens on {} ({}FLOP/s, {}B/s): an estimate, not measured\n",
                  with_commas(static_cast<int64_t>(r.tokens)), r.gpu, si_text(r.peak), si_text(r.bandwidth));
  text +=
      fmt::format("  {:<30} {:>9} {:>9} {:>9} {:>11} {:>6}\n", "", "TFLOP", "GB", "limit ms", "estimate ms", "share");
  const double all = r.estimate_seconds();
  for (const RooflinePart& p : r.parts) {
    text += fmt::format("  {:<30} {:>9.3f} {:>9.2f} {:>9.2f} {:>11.2f} {:>5.0f}%{}\n", p.name, p.flops / 1e12,
                        p.bytes / 1e9, 1e3 * p.limit_s, 1e3 * p.estimate_s, 100 * p.estimate_s / all,
                        p.by_memory ? "  memory" : "");
  }
  text +=
      fmt::format("  {:<30} {:>9} {:>9} {:>9.2f} {:>11.2f}\n", "together", "", "", 1e3 * r.limit_seconds(), 1e3 * all);
  text += fmt::format(
      "  estimate: {} tokens/s, MFU {:.0f}% (at the limits {:.0f}%); assumed of peak: head {:.0f}%, experts "
      "{:.0f}%, other products {:.0f}%, attention {:.0f}%; of bandwidth {:.0f}%\n",
      with_commas(static_cast<int64_t>(r.tokens_per_second())), 100 * r.mfu(), 100 * r.most_mfu(),
      100 * r.assumed.head_products, 100 * r.assumed.grouped_products, 100 * r.assumed.other_products,
      100 * r.assumed.attention, 100 * r.assumed.bandwidth);
  text += fmt::format("  most to gain: {} ({:.1f} ms above its limit)\n", r.next().name,
                      1e3 * (r.next().estimate_s - r.next().limit_s));
  return text;
}

Json roofline_json(const Roofline& r) {
  Json parts = Json::array();
  for (const RooflinePart& p : r.parts) {
    parts.push_back({{"name", p.name},
                     {"flops", p.flops},
                     {"bytes", p.bytes},
                     {"limit_s", p.limit_s},
                     {"estimate_s", p.estimate_s},
                     {"limited_by", p.by_memory ? "memory" : "compute"}});
  }
  return {{"gpu", r.gpu},
          {"measured", false},
          {"micro_step_tokens", r.tokens},
          {"parts", std::move(parts)},
          {"tokens_per_s", r.tokens_per_second()},
          {"mfu", r.mfu()},
          {"mfu_at_the_limits", r.most_mfu()},
          {"attack_next", r.next().name}};
}

}  // namespace mythos
