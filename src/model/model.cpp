#include "model/model.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/units.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

#include <fmt/ranges.h>

#include <algorithm>

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

// What a forward pass asks of its ids, of which the first has position `first`.
void check_input(const at::Tensor& ids, int64_t first, const ModelConfig& config) {
  TORCH_CHECK(ids.dim() == 2 && ids.size(0) > 0 && ids.size(1) > 0, "ids must be [B, T] and not empty, got ",
              ids.sizes());
  const int64_t positions = first + ids.size(1);
  if (positions > config.max_seq_len) {
    throw usage_error(
        fmt::format("{} positions asked, the model has {} (model.max_seq_len)", positions, config.max_seq_len),
        "shorten the text or the number of new tokens");
  }
  check_ids(ids, config.vocab_size);
}

void check_loops(int64_t loops) {
  if (loops < 1) throw usage_error(fmt::format("{} loops asked, at least 1 is needed", loops));
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
  const std::span<KvCache> caches = options.cache != nullptr ? std::span<KvCache>(options.cache, 1) : options.caches;
  TORCH_CHECK(options.caches.empty() || std::ssize(options.caches) == ids.size(0), options.caches.size(),
              " caches for ", ids.size(0), " rows");
  int64_t first = 0;
  for (const KvCache& c : caches) first = std::max(first, c.length());
  check_input(ids, first, config_);
  const int64_t t_count = ids.size(1);
  const int64_t loops = options.n_loops != 0 ? options.n_loops : config_.max_loop_iters;
  check_loops(loops);

  Places places;
  (void)rotary_.slice(0, first + t_count);  // grows at most once: slices share the table
  for (KvCache& c : caches) {
    c.require_loops(loops);
    places.add(rotary_.slice(c.length(), t_count), &c);
  }
  if (caches.empty()) places.add(rotary_.slice(0, t_count), nullptr);
  UnitHooks* const hooks = options.hooks;
  if (hooks != nullptr) hooks->before_forward(0);
  at::Tensor x = of_type(embedding(ids, embed_), store_.compute_dtype());
  const bool again =
      options.recompute == Recompute::loop && !places.cached() && at::GradMode::is_enabled() && x.requires_grad();
  const auto run = [&](const DenseBlock& block, std::vector<Place> at) {
    if (!again) return block.forward(x, at);
    return recomputed(x, x, [&block, at = std::move(at)](const at::Tensor& input, const at::Tensor&) {
      return std::vector<at::Tensor>{block.forward(input, at)};
    })[0];
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
    in_unit([&] { return run(prelude_[i], places.prelude(static_cast<int64_t>(i))); });
  }
  in_unit([&] {
    return options.adaptive ? recurrent_.adaptive(x, loops, places, options.observer)
                            : recurrent_.forward(x, loops, places, options.recompute, options.observer, hooks);
  });
  for (size_t i = 0; i < coda_.size(); ++i) {
    in_unit([&] { return run(coda_[i], places.coda(static_cast<int64_t>(i))); });
  }
  for (KvCache& c : caches) c.advance(t_count);
  return rms_norm(x, norm_);
}

void Model::hidden_by_loops(const at::Tensor& ids, std::span<const int64_t> counts, const HiddenSink& sink,
                            const LoopObserver* observer) {
  TORCH_CHECK(
      !counts.empty() && std::adjacent_find(counts.begin(), counts.end(), std::greater_equal<>()) == counts.end(),
      "loop counts must rise");
  check_loops(counts.front());
  check_input(ids, 0, config_);
  const at::NoGradGuard no_grad;
  const Places places(rotary_.slice(0, ids.size(1)), nullptr);
  at::Tensor x = of_type(embedding(ids, embed_), store_.compute_dtype());
  for (size_t i = 0; i < prelude_.size(); ++i) x = prelude_[i].forward(x, places.prelude(static_cast<int64_t>(i)));

  const auto finished = [&](const at::Tensor& output) {
    at::Tensor y = output.to(x.scalar_type());
    for (size_t i = 0; i < coda_.size(); ++i) y = coda_[i].forward(y, places.coda(static_cast<int64_t>(i)));
    return rms_norm(y, norm_);
  };
  size_t next = 0;
  const LoopObserver watch = [&](const LoopReport& r) {
    if (observer != nullptr) (*observer)(r);
    if (r.loop + 1 == counts[next]) {
      sink(next, finished(r.output));
      ++next;
    }
  };
  const at::Tensor last = recurrent_.forward(x, counts.back(), places, Recompute::none, &watch);
  if (next == counts.size()) return;
  // Every position had halted: more loops change nothing.
  const at::Tensor all_halted = finished(last);
  for (; next < counts.size(); ++next) sink(next, all_halted);
}

at::Tensor Model::logits(const at::Tensor& hidden_states) const { return linear(hidden_states, embed_); }

bool Model::screens(int64_t vocabulary, int64_t most) {
  constexpr int64_t most_wanted = 1024;
  const at::Tensor& head = embed_.value;
  if (most < 1 || most > most_wanted || vocabulary < screens_from || vocabulary <= most) return false;
  if (!head.device().is_cpu() || head.requires_grad() || store_.compute_dtype() != at::kFloat) return false;
  if (!screen_ || screened_ != vocabulary || screened_at_ != head._version()) {
    const int64_t bytes = vocabulary * (config_.dim + 16);
    if (available_memory() < bytes + bytes / 4) return false;
    screen_ = std::make_unique<ScreenedHead>(head.narrow(0, 0, vocabulary));
    screened_ = vocabulary;
    screened_at_ = head._version();
  }
  return screen_->usable();
}

at::Tensor Model::likely_logits(const at::Tensor& hidden, int64_t vocabulary, int64_t most) {
  if (hidden.size(0) <= cpu::few_rows_most && screens(vocabulary, most)) {
    at::Tensor likely = screen_->largest_logits(hidden, most);
    candidates_ = screen_->candidates();
    return likely;
  }
  candidates_ = hidden.size(0) * vocabulary;
  return logits(hidden).narrow(1, 0, vocabulary);
}

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

std::unique_ptr<Model> inference_model(const ModelConfig& config, at::Device device, at::ScalarType weights) {
  const bool widened = device.is_cpu() && weights == at::kBFloat16;
  return std::make_unique<Model>(config, device, widened ? at::kFloat : weights, weights, false);
}

std::pair<double, double> Model::spectral_radius() const {
  const auto [low, high] = injection_decay_values().aminmax();
  return {high.item<double>(), low.item<double>()};
}

}  // namespace mythos
