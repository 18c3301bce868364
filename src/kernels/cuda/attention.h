// Which of LibTorch's attention kernels takes heads on a device, and calls of them, forward and backward. Causal, with
// as many queries as keys.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

namespace mythos::cuda {

enum class AttentionBackend {
  cudnn,      ///< _scaled_dot_product_cudnn_attention
  flash,      ///< _scaled_dot_product_flash_attention
  efficient,  ///< _scaled_dot_product_efficient_attention
  flash_cpu,  ///< _scaled_dot_product_flash_attention_for_cpu
  math,       ///< composite operations with explicit scores: takes everything
};
const char* name_of(AttentionBackend backend);

/// What the choice depends on.
struct AttentionCase {
  int capability = 0;  ///< of the GPU: 10 * major + minor; 0: a CPU
  at::ScalarType type = at::kFloat;
  int64_t count = 0;             ///< queries, keys
  int64_t width = 0, value = 0;  ///< of a head's q and k, and of its v
  bool deterministic = false;    ///< LibTorch is asked for deterministic algorithms
};
/// The backends that may take this, the fastest first; math is the last.
std::vector<AttentionBackend> attention_backends(const AttentionCase& c);

struct HeadWidths {
  int64_t key = 0, value = 0;
};
/// The widths that a backend wants, by zeros behind the heads' own.
HeadWidths padded_widths(AttentionBackend backend, at::ScalarType type, HeadWidths own);

struct AttentionOutput {
  at::Tensor out;                      ///< [B, H, T, value]
  at::Tensor lse;                      ///< as the backend keeps it; undefined unless asked for
  std::array<at::Tensor, 2> rng = {};  ///< what the backward call wants back, where the backend has it
};
/// q [B, H, T, d], k [B, Hkv, T, d], v [B, Hkv, T, dv] in padded_widths(); scores are multiplied by `scale`. Throws
/// what LibTorch throws where the backend does not take them.
AttentionOutput attend(AttentionBackend backend, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       double scale, bool with_lse);
/// Gradients of q, k and v. `forward` is of the same backend.
std::array<at::Tensor, 3> attend_backward(AttentionBackend backend, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionOutput& forward, const at::Tensor& dout,
                                          double scale);

}  // namespace mythos::cuda
