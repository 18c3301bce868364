#include "model/model.h"

#include "base/error.h"
#include "base/units.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

#include <fmt/ranges.h>

namespace mythos {
namespace {

const ModelConfig& checked(const ModelConfig& config) {
  const auto wrong = problems(config);
  if (!wrong.empty()) throw usage_error(fmt::format("{}", fmt::join(wrong, "; ")));
  return config;
}

// Looks only where it costs no wait for a device.
void check_ids(const at::Tensor& ids, int64_t vocabulary) {
  if (!ids.device().is_cpu()) return;
  const auto [low, high] = ids.aminmax();
  if (low.item<int64_t>() >= 0 && high.item<int64_t>() < vocabulary) return;
  const int64_t bad = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
  throw usage_error(fmt::format("token id {} is outside the model's vocabulary of {}", bad, with_commas(vocabulary)),
                    "the tokenizer does not belong to this model");
}

std::vector<DenseBlock> dense_blocks(const ModelConfig& config, const ParameterStore& store, const char* part,
                                     int64_t n) {
  std::vector<DenseBlock> blocks;
  for (int64_t i = 0; i < n; ++i) blocks.emplace_back(config, store, fmt::format("{}.{}.", part, i));
  return blocks;
}

}  // namespace

Model::Model(const ModelConfig& config, at::Device device, at::ScalarType compute, at::ScalarType master,
             bool gradients, const Partition& partition)
    : config_(checked(config)),
      store_(config_, device, compute, master, gradients, partition),
      router_bias_(at::zeros({config_.n_experts}, at::TensorOptions(device).dtype(accumulate_type(master)))),
      rotary_(config_.rotary_dim(), config_.rope_theta, device),
      embed_(store_.leaf("embed.weight")),
      norm_(store_.leaf("norm.weight")),
      prelude_(dense_blocks(config_, store_, "prelude", config_.prelude_layers)),
      coda_(dense_blocks(config_, store_, "coda", config_.coda_layers)),
      recurrent_(config_, store_, router_bias_) {}

std::vector<NamedTensor> Model::named_buffers() const { return {{"recurrent.block.ffn.router_bias", router_bias_}}; }

at::Tensor Model::hidden(const at::Tensor& ids, const ForwardOptions& options) {
  TORCH_CHECK(ids.dim() == 2 && ids.size(0) > 0 && ids.size(1) > 0, "ids must be [B, T] and not empty, got ",
              ids.sizes());
  const int64_t t_count = ids.size(1);
  const int64_t first = options.cache != nullptr ? options.cache->length() : 0;
  if (first + t_count > config_.max_seq_len) {
    throw usage_error(
        fmt::format("{} positions asked, the model has {} (model.max_seq_len)", first + t_count, config_.max_seq_len),
        "shorten the text or the number of new tokens");
  }
  check_ids(ids, config_.vocab_size);
  const int64_t loops = options.n_loops != 0 ? options.n_loops : config_.max_loop_iters;
  if (loops < 1) throw usage_error(fmt::format("{} loops asked, at least 1 is needed", loops));

  const auto positions = rotary_.slice(first, t_count);
  UnitHooks* const hooks = options.hooks;
  if (hooks != nullptr) hooks->before_forward(0);
  at::Tensor x = embedding(ids, embed_);
  const bool again = options.recompute == Recompute::loop && options.cache == nullptr && at::GradMode::is_enabled() &&
                     x.requires_grad();
  const auto run = [&](const DenseBlock& block, CacheEntry* cache) {
    if (!again) return block.forward(x, positions, cache);
    return recomputed(x, x, [&block, positions](const at::Tensor& input, const at::Tensor&) {
      return block.forward(input, positions, nullptr);
    });
  };
  // What is called when the gradient of what a unit gives is complete: all units behind are done by then, as autograd
  // takes what was made last first.
  const auto will_need = [hooks](const at::Tensor& out, size_t unit) {
    if (!at::GradMode::is_enabled() || !out.requires_grad()) return;
    out.register_hook([hooks, unit](const at::Tensor&) { hooks->before_backward(unit); });
  };
  if (hooks != nullptr) will_need(x, 0);
  size_t unit = 0;
  const auto in_unit = [&](const auto& forward) {
    ++unit;
    if (hooks == nullptr) {
      x = forward();
      return;
    }
    hooks->before_forward(unit);
    x = forward();
    hooks->after_forward(unit);
    will_need(x, unit);
  };
  for (size_t i = 0; i < prelude_.size(); ++i) {
    in_unit(
        [&] { return run(prelude_[i], options.cache ? &options.cache->prelude(static_cast<int64_t>(i)) : nullptr); });
  }
  in_unit([&] {
    return recurrent_.forward(x, loops, positions, options.recompute, options.cache, options.observer, hooks);
  });
  for (size_t i = 0; i < coda_.size(); ++i) {
    in_unit([&] { return run(coda_[i], options.cache ? &options.cache->coda(static_cast<int64_t>(i)) : nullptr); });
  }
  if (options.cache != nullptr) options.cache->advance(t_count);
  return rms_norm(x, norm_);
}

at::Tensor Model::logits(const at::Tensor& hidden_states) const { return linear(hidden_states, embed_); }

at::Tensor Model::loss(const at::Tensor& ids, const at::Tensor& targets, double denominator,
                       const ForwardOptions& options) {
  if (targets.device().is_cpu()) check_ids(targets.masked_fill(targets.eq(ignored_target), 0), config_.vocab_size);
  const at::Tensor h = hidden(ids, options);
  return linear_cross_entropy(h.reshape({-1, h.size(-1)}), embed_, targets.reshape({-1}), denominator);
}

at::Tensor Model::injection_decay_values() const {
  const at::NoGradGuard no_grad;
  return injection_decay(store_.leaf("recurrent.injection.log_A").value,
                         store_.leaf("recurrent.injection.log_dt").value);
}

std::pair<double, double> Model::spectral_radius() const {
  const auto [low, high] = injection_decay_values().aminmax();
  return {high.item<double>(), low.item<double>()};
}

}  // namespace mythos
