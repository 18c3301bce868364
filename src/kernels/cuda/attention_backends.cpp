#include "kernels/cuda/attention.h"
#include "kernels/weight.h"

#include <limits>

namespace mythos::cuda {
namespace {

int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// cuDNN: bf16 (and fp16) on sm_80 to sm_121; q and v of different widths, multiples of 8 up to 128, and 192 with 128
// on sm_90 and sm_100, where the backward pass goes no further either; not with a single key. It is not deterministic.
bool cudnn_takes(const AttentionCase& c, HeadWidths w) {
  const bool large = c.capability == 90 || c.capability / 10 == 10;
  const bool narrow = w.key <= 128 && w.value <= 128;
  return c.type == at::kBFloat16 && c.capability >= 80 && c.count > 1 && !c.deterministic &&
         (narrow || (large && w.key == 192 && w.value == 128));
}

// Flash: bf16 (and fp16) on sm_80 to sm_121; one width for all, a multiple of 8 up to 256. On sm_86, sm_89 and sm_120
// its backward pass lacks 193 to 224. Deterministic where LibTorch is asked for that.
bool flash_takes(const AttentionCase& c, HeadWidths w) {
  const bool small = (c.capability >= 86 && c.capability <= 89) || c.capability / 10 == 12;
  return c.type == at::kBFloat16 && c.capability >= 80 && w.key <= 256 && !(small && w.key > 192 && w.key <= 224);
}

std::array<at::Tensor, 2> repeated(const at::Tensor& k, const at::Tensor& v, int64_t groups) {
  if (groups == 1) return {k, v};
  return {k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)};
}
// The gradient of one key head from those of its query heads, [B, H, T, d] -> [B, Hkv, T, d].
at::Tensor over_groups(const at::Tensor& d, int64_t groups, at::ScalarType type) {
  if (groups == 1) return d.to(type);
  return d.unflatten(1, {d.size(1) / groups, groups}).sum(2, false, accumulate_type(type)).to(type);
}

at::Tensor causal_scores(const at::Tensor& q, const at::Tensor& k, double scale) {
  const int64_t count = q.size(2);
  const at::Tensor later = at::ones({count, count}, q.options().dtype(at::kBool)).triu(1);
  return at::matmul(q, k.transpose(-2, -1)).mul_(scale).masked_fill_(later, -std::numeric_limits<double>::infinity());
}

AttentionOutput math(const at::Tensor& q, const at::Tensor& k_, const at::Tensor& v_, double scale) {
  const auto wide = accumulate_type(q.scalar_type());
  const auto [k, v] = repeated(k_, v_, q.size(1) / k_.size(1));
  const at::Tensor scores = causal_scores(q.to(wide), k.to(wide), scale);
  const at::Tensor lse = scores.logsumexp(-1);
  return {at::matmul((scores - lse.unsqueeze(-1)).exp_(), v.to(wide)).to(q.scalar_type()), lse, {}};
}

std::array<at::Tensor, 3> math_backward(const at::Tensor& q_, const at::Tensor& k_, const at::Tensor& v_,
                                        const AttentionOutput& f, const at::Tensor& dout_, double scale) {
  const auto type = q_.scalar_type(), wide = accumulate_type(type);
  const int64_t groups = q_.size(1) / k_.size(1);
  const auto [k_all, v_all] = repeated(k_, v_, groups);
  const at::Tensor q = q_.to(wide), k = k_all.to(wide), v = v_all.to(wide), dout = dout_.to(wide);
  const at::Tensor p = (causal_scores(q, k, scale) - f.lse.unsqueeze(-1)).exp_();
  const at::Tensor delta = (dout * f.out.to(wide)).sum(-1, true);
  const at::Tensor ds = (at::matmul(dout, v.transpose(-2, -1)) - delta).mul_(p).mul_(scale);
  return {at::matmul(ds, k).to(type), over_groups(at::matmul(ds.transpose(-2, -1), q), groups, type),
          over_groups(at::matmul(p.transpose(-2, -1), dout), groups, type)};
}

}  // namespace

const char* name_of(AttentionBackend backend) {
  constexpr std::array names{"cuDNN", "flash", "efficient", "CPU flash", "math"};
  return names[static_cast<size_t>(backend)];
}

HeadWidths padded_widths(AttentionBackend backend, at::ScalarType type, HeadWidths own) {
  const int64_t larger = std::max(own.key, own.value);
  switch (backend) {
    case AttentionBackend::cudnn:
      return {rounded_up(own.key, 8), rounded_up(own.value, 8)};
    case AttentionBackend::flash:
      return {rounded_up(larger, 8), rounded_up(larger, 8)};
    case AttentionBackend::efficient: {  // 16 bytes of numbers from sm_80 on
      const int64_t numbers = type == at::kBFloat16 ? 8 : 4;
      return {rounded_up(own.key, numbers), rounded_up(own.value, numbers)};
    }
    case AttentionBackend::flash_cpu:
      return {larger, larger};
    case AttentionBackend::math:
      break;
  }
  return own;
}

std::vector<AttentionBackend> attention_backends(const AttentionCase& c) {
  using B = AttentionBackend;
  if (c.capability == 0) return {B::flash_cpu, B::math};
  const auto widths = [&c](B backend) { return padded_widths(backend, c.type, {c.width, c.value}); };
  const bool cudnn = cudnn_takes(c, widths(B::cudnn)), flash = flash_takes(c, widths(B::flash));
  const bool cudnn_first = c.capability / 10 == 9 || c.capability / 10 == 10;
  std::vector<B> order;
  if (cudnn && cudnn_first) order.push_back(B::cudnn);
  if (flash) order.push_back(B::flash);
  if (cudnn && !cudnn_first) order.push_back(B::cudnn);
  // Efficient: fp32 too; different widths, 16 bytes of numbers at a time; bf16 from sm_80 on. Not fp64.
  if (c.type == at::kFloat || (c.type == at::kBFloat16 && c.capability >= 80)) order.push_back(B::efficient);
  order.push_back(B::math);
  return order;
}

// cuDNN, flash and the CPU's share keys between query heads by themselves; efficient wants as many of both. The lse is
// [B, H, T] of flash, [B, H, T, 1] of cuDNN, and of efficient [B, H, T rounded up to 32]: each goes back as it came.
// Without dropout the random state is not read, but flash and cuDNN want theirs back.
AttentionOutput attend(AttentionBackend backend, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       double scale, bool with_lse) {
  switch (backend) {
    case AttentionBackend::cudnn: {
      const auto r = at::_scaled_dot_product_cudnn_attention(q, k, v, {}, with_lse, 0.0, true, false, scale);
      return {std::get<0>(r), std::get<1>(r), {std::get<6>(r), std::get<7>(r)}};
    }
    case AttentionBackend::flash: {
      const auto r = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true, false, scale);
      return {std::get<0>(r), std::get<1>(r), {std::get<6>(r), std::get<7>(r)}};
    }
    case AttentionBackend::efficient: {
      const auto [keys, values] = repeated(k, v, q.size(1) / k.size(1));
      const auto r = at::_scaled_dot_product_efficient_attention(q, keys, values, {}, with_lse, 0.0, true, scale);
      return {std::get<0>(r), std::get<1>(r), {std::get<2>(r), std::get<3>(r)}};
    }
    case AttentionBackend::flash_cpu: {
      const auto r = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {}, scale);
      return {std::get<0>(r), std::get<1>(r), {}};
    }
    case AttentionBackend::math:
      break;
  }
  return math(q, k, v, scale);
}

std::array<at::Tensor, 3> attend_backward(AttentionBackend backend, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionOutput& f, const at::Tensor& dout,
                                          double scale) {
  const int64_t count = q.size(2), groups = q.size(1) / k.size(1);
  const at::Tensor none;
  switch (backend) {
    case AttentionBackend::cudnn: {
      const auto r = at::_scaled_dot_product_cudnn_attention_backward(dout, q, k, v, f.out, f.lse, f.rng[0], f.rng[1],
                                                                      none, none, none, count, count, 0.0, true, scale);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
    }
    case AttentionBackend::flash: {
      const auto r = at::_scaled_dot_product_flash_attention_backward(dout, q, k, v, f.out, f.lse, none, none, count,
                                                                      count, 0.0, true, f.rng[0], f.rng[1], scale);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
    }
    case AttentionBackend::efficient: {
      const auto [keys, values] = repeated(k, v, groups);
      const auto r = at::_scaled_dot_product_efficient_attention_backward(
          dout, q, keys, values, none, f.out, f.lse, f.rng[0], f.rng[1], 0.0, {true, true, true, false}, true, scale);
      return {std::get<0>(r), over_groups(std::get<1>(r), groups, q.scalar_type()),
              over_groups(std::get<2>(r), groups, q.scalar_type())};
    }
    case AttentionBackend::flash_cpu: {
      const auto r =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, f.out, f.lse, 0.0, true, {}, scale);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r)};
    }
    case AttentionBackend::math:
      break;
  }
  return math_backward(q, k, v, f, dout, scale);
}

}  // namespace mythos::cuda
