#include "model/recurrent.h"

#include "kernels/linear.h"
#include "kernels/rms_norm.h"

namespace mythos {

RecurrentBlock::RecurrentBlock(const ModelConfig& c, const ParameterStore& store, at::Tensor router_bias)
    : max_loops_(c.max_loop_iters),
      threshold_(c.act_threshold),
      norm_(store.leaf("recurrent.norm.weight")),
      attn_norm_(store.leaf("recurrent.block.attn_norm.weight")),
      ffn_norm_(store.leaf("recurrent.block.ffn_norm.weight")),
      log_a_(store.leaf("recurrent.injection.log_A")),
      log_dt_(store.leaf("recurrent.injection.log_dt")),
      b_(store.leaf("recurrent.injection.B")),
      halt_(store.leaf("recurrent.act.halt.weight")),
      halt_bias_(store.leaf("recurrent.act.halt.bias")),
      lora_down_(store.leaf("recurrent.lora.down.weight")),
      lora_b_(store.leaf("recurrent.lora.B")),
      lora_scale_(store.leaf("recurrent.lora.scale.weight")),
      signals_(c.dim, c.max_loop_iters, norm_.value.options()),
      attn_(c, store, "recurrent.block.attn."),
      experts_(c, store, "recurrent.block.ffn.", std::move(router_bias)) {}

at::Tensor RecurrentBlock::loop(const at::Tensor& h, const at::Tensor& e, int64_t t,
                                const RotaryTable::Slice& positions, CacheEntry* cache, at::Tensor* chosen) {
  const at::Tensor c = loop_norm(h, signals_.at(t), e, norm_);
  const at::Tensor x = c + attn_.forward(rms_norm(c, attn_norm_), positions, cache);
  const at::Tensor u = x + experts_.forward(rms_norm(x, ffn_norm_), chosen);
  // The weights' row of this loop; loops beyond the trained ones reuse the last row.
  const at::Tensor scale = lora_scale_.value.select(0, std::min(t, max_loops_ - 1));
  const at::Tensor lora = at::matmul(linear(u, lora_down_) * scale, lora_b_.value);
  return injection(h, e, u, lora, log_a_, log_dt_, b_);
}

at::Tensor RecurrentBlock::forward(const at::Tensor& e, int64_t n_loops, const RotaryTable::Slice& positions,
                                   Recompute recompute, KvCache* cache, const LoopObserver* observer) {
  const auto wide = e.options().dtype(accumulate_type(e.scalar_type()));
  const bool again =
      recompute == Recompute::loop && cache == nullptr && at::GradMode::is_enabled() && e.requires_grad();
  HaltingState halting{at::zeros({e.size(0), e.size(1)}, wide),
                       at::zeros({e.size(0), e.size(1)}, wide.dtype(at::kBool))};
  at::Tensor h = e;
  at::Tensor out = at::zeros(e.sizes(), wide);
  for (int64_t t = 0; t < n_loops; ++t) {
    at::Tensor chosen;
    at::Tensor* const wanted = observer != nullptr ? &chosen : nullptr;
    if (again) {
      // The observer's wish is for the forward pass only: by the time of the second run `chosen` is gone.
      bool first = true;
      h = recomputed(
          h, e,
          RecomputedBody([this, t, positions, wanted, first](const at::Tensor& state, const at::Tensor& input) mutable {
            at::Tensor* const out_chosen = first ? wanted : nullptr;
            first = false;
            return loop(state, input, t, positions, nullptr, out_chosen);
          }));
    } else {
      h = loop(h, e, t, positions, cache != nullptr ? &cache->loop(t) : nullptr, wanted);
    }
    const ActStep act = act_step(h, out, halting, halt_, halt_bias_, threshold_);
    out = act.out;
    if (observer != nullptr) (*observer)({t, h.detach(), act.p.detach(), act.weight.detach(), chosen, out.detach()});
    // Worth a look only on the CPU: elsewhere it would wait for the device, and the result is the same without.
    if (cache == nullptr && t + 1 < n_loops && h.device().is_cpu() && halting.halted.all().item<bool>()) break;
  }
  return out.to(e.scalar_type());
}

}  // namespace mythos
