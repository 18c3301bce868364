#include "model/recurrent.h"

#include "kernels/linear.h"
#include "kernels/rms_norm.h"

#include <numeric>

namespace mythos {

RecurrentBlock::RecurrentBlock(const ModelConfig& c, const ParameterStore& store, at::Tensor router_bias)
    : max_loops_(c.max_loop_iters),
      threshold_(c.act_threshold),
      norm_(store.leaf("recurrent.norm.weight")),
      attn_norm_(store.leaf("recurrent.block.attn_norm.weight")),
      ffn_norm_(store.leaf("recurrent.block.ffn_norm.weight")),
      lora_down_(store.leaf("recurrent.lora.down.weight")),
      lora_scale_(store.leaf("recurrent.lora.scale.weight")),
      update_{store.leaf("recurrent.lora.B"),           store.leaf("recurrent.injection.log_A"),
              store.leaf("recurrent.injection.log_dt"), store.leaf("recurrent.injection.B"),
              store.leaf("recurrent.act.halt.weight"),  store.leaf("recurrent.act.halt.bias")},
      signals_(c.dim, c.max_loop_iters, norm_.value.options()),
      attn_(c, store, "recurrent.block.attn."),
      experts_(c, store, "recurrent.block.ffn.", std::move(router_bias)) {}

std::vector<at::Tensor> RecurrentBlock::block(const at::Tensor& h, const at::Tensor& e, int64_t t,
                                              const std::vector<Place>& places, at::Tensor* chosen) {
  const at::Tensor c = loop_norm(h, signals_.at(t), e, norm_);
  const ResidualNorm x = residual_norm(c, attn_.forward(rms_norm(c, attn_norm_), places), ffn_norm_);
  const at::Tensor u = experts_.forward(x.y, x.sum, chosen);
  // The weights' row of this loop; loops beyond the trained ones reuse the last row.
  const at::Tensor scale = lora_scale_.value.select(0, std::min(t, max_loops_ - 1));
  return {u, linear(u, lora_down_) * scale};
}

namespace {

HaltingState nobody_halted(const at::Tensor& out) {
  return {at::zeros({out.size(0), out.size(1)}, out.options()),
          at::zeros({out.size(0), out.size(1)}, out.options().dtype(at::kBool))};
}

}  // namespace

at::Tensor RecurrentBlock::forward(const at::Tensor& e, int64_t n_loops, const Places& places, Recompute recompute,
                                   const LoopObserver* observer, UnitHooks* hooks) {
  const auto wide = e.options().dtype(accumulate_type(e.scalar_type()));
  const bool again =
      recompute == Recompute::loop && !places.cached() && at::GradMode::is_enabled() && e.requires_grad();
  at::Tensor h = e;
  at::Tensor out = at::zeros(e.sizes(), wide);
  HaltingState halting = nobody_halted(out);
  for (int64_t t = 0; t < n_loops; ++t) {
    at::Tensor chosen;
    at::Tensor* const wanted = observer != nullptr ? &chosen : nullptr;
    std::vector<at::Tensor> made;
    if (again) {
      // The observer's wish is for the forward pass only: by the time of the second run `chosen` is gone.
      bool first = true;
      made = recomputed(
          h, e,
          RecomputedBody([this, t, places, wanted, first](const at::Tensor& state, const at::Tensor& input) mutable {
            at::Tensor* const out_chosen = first ? wanted : nullptr;
            first = false;
            return block(state, input, t, places.loop(t), out_chosen);
          }));
    } else {
      made = block(h, e, t, places.loop(t), wanted);
    }
    const auto [state, act] = loop_update(h, e, made[0], made[1], out, halting, update_, threshold_);
    h = state;
    out = act.out;
    if (observer != nullptr) (*observer)({t, h.detach(), act.p.detach(), act.weight.detach(), chosen, out.detach()});
    // Worth a look only on the CPU: elsewhere it would wait for the device, and the result is the same without.
    if (places.cached() || t + 1 == n_loops || !h.device().is_cpu()) continue;
    const bool halted = halting.halted.all().item<bool>();
    if (hooks != nullptr ? hooks->all_halted(halted) : halted) break;
  }
  return out.to(e.scalar_type());
}

at::Tensor RecurrentBlock::adaptive(const at::Tensor& e_all, int64_t n_loops, const Places& all,
                                    const LoopObserver* observer) {
  TORCH_CHECK(e_all.size(1) == 1 && all.cached() && static_cast<int64_t>(all.size()) == e_all.size(0),
              "adaptive loops are for one token of each text with a cache");
  at::Tensor result = at::empty_like(e_all);
  // What still runs: rows of e_all, and everything of theirs.
  std::vector<int64_t> rows(all.size());
  std::iota(rows.begin(), rows.end(), 0);
  Places places = all;
  at::Tensor e = e_all, h = e_all;
  at::Tensor out = at::zeros(e.sizes(), e.options().dtype(accumulate_type(e.scalar_type())));
  HaltingState halting = nobody_halted(out);
  for (int64_t t = 0; !rows.empty(); ++t) {
    at::Tensor chosen;
    const auto made = block(h, e, t, places.loop(t), observer != nullptr ? &chosen : nullptr);
    const auto [state, act] = loop_update(h, e, made[0], made[1], out, halting, update_, threshold_);
    h = state;
    out = act.out;
    if (observer != nullptr) (*observer)({t, h, act.p, act.weight, chosen, out});
    std::vector<int64_t> running, still;  // indices into rows, and the rows
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      if (t + 1 < n_loops && !halting.halted[row][0].item<bool>()) {
        running.push_back(row);
        still.push_back(rows[i]);
        continue;
      }
      result.select(0, rows[i]).copy_(out.select(0, row));
      for (int64_t later = t + 1; later < n_loops; ++later) {
        KvCache& cache = places.cache(i);
        (void)cache.loop(later);  // entries are made on demand, and making one may move the others
        cache.loop(later).append_newest_of(cache.loop(t));
      }
    }
    if (running.size() == rows.size()) continue;
    rows = still;
    places = places.of(running);
    const at::Tensor keep = at::tensor(running, at::TensorOptions(e.device()).dtype(at::kLong));
    const auto kept = [&keep](const at::Tensor& x) { return x.index_select(0, keep); };
    e = kept(e), h = kept(h), out = kept(out);
    halting = {kept(halting.cumulative), kept(halting.halted)};
  }
  return result;
}

}  // namespace mythos
