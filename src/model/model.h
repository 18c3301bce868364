// The whole model: embedding, prelude, looped block, coda, norm, tied head.
#pragma once

#include "kernels/screened_head.h"
#include "model/recurrent.h"
#include "model/unit_hooks.h"

#include <functional>
#include <memory>
#include <span>

namespace mythos {

struct ForwardOptions {
  int64_t n_loops = 0;  ///< 0: the configuration's max_loop_iters; may exceed it
  Recompute recompute = Recompute::none;
  KvCache* cache = nullptr;  ///< with a cache every loop runs, and positions go on from its length
  /// Instead of `cache`: one for each row of ids, whose texts may have different lengths.
  std::span<KvCache> caches = {};
  /// One token of each row with a cache: its loops end when it halts. See RecurrentBlock::adaptive.
  bool adaptive = false;
  const LoopObserver* observer = nullptr;
  UnitHooks* hooks = nullptr;  ///< without a cache only; alive until the backward pass is over
};

class Model {
 public:
  /// Parameters are zero until initialize() or a checkpoint fills them. `compute` is the type of the activations, and
  /// of the weights while training; `master` that of the parameters as they are stored. Without gradients the ops take
  /// the stored ones: bfloat16 weights with float activations decode in half the time on a CPU.
  Model(const ModelConfig& config, at::Device device, at::ScalarType compute, at::ScalarType master, bool gradients,
        const Partition& partition = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] ParameterStore& parameters() { return store_; }
  [[nodiscard]] const ParameterStore& parameters() const { return store_; }
  /// Not trained and not counted, but saved: the router bias, fp32 [n_experts].
  [[nodiscard]] std::vector<NamedTensor> named_buffers() const;

  /// ids: int64 [B, T] -> the normalised hidden states the head reads, [B, T, D]. Throws Error for ids outside the
  /// vocabulary, and where positions would exceed max_seq_len.
  at::Tensor hidden(const at::Tensor& ids, const ForwardOptions& options = {});
  /// Gets counts[i]'s hidden states: (i, hidden).
  using HiddenSink = std::function<void(size_t, const at::Tensor&)>;
  /// What hidden() gives with each of `counts` loops (rising, at least 1), bit for bit, from one pass: prelude and
  /// loops run once, coda and norm once for every count. `sink` gets them in turn while the loop runs, so that no two
  /// of them need memory at once. No gradient flows. `observer` may be null.
  void hidden_by_loops(const at::Tensor& ids, std::span<const int64_t> counts, const HiddenSink& sink,
                       const LoopObserver* observer = nullptr);
  /// hidden [.., D] -> logits [.., V].
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden) const;
  /// hidden [rows, D] -> [rows, vocabulary]: the logits of the first `vocabulary` tokens, of which those that are
  /// not among the `most` largest may be -infinity. By a ScreenedHead where that pays (see screens()); it is made at
  /// the first call, and anew where the weights have been written to in between.
  [[nodiscard]] at::Tensor likely_logits(const at::Tensor& hidden, int64_t vocabulary, int64_t most);
  /// Whether likely_logits() leaves some out: on the CPU, without gradients, for at least `screens_from` tokens of
  /// which few are wanted, and where there is memory for it.
  [[nodiscard]] bool screens(int64_t vocabulary, int64_t most);
  /// The smallest vocabulary that is screened.
  int64_t screens_from = 16384;
  /// Tokens that got logits in the last likely_logits(), of all its rows.
  [[nodiscard]] int64_t candidates() const { return candidates_; }
  /// Cross-entropy summed over targets [B, T] and divided by `denominator`: see linear_cross_entropy. Throws Error for
  /// targets outside the vocabulary (ignored_target apart).
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, double denominator,
                  const ForwardOptions& options = {});

  /// Added to the router's scores where experts are chosen: [n_experts], a buffer.
  [[nodiscard]] const at::Tensor& router_bias() const { return router_bias_; }

  /// max and min over channels of A, the spectral radius of the injection: (max, min).
  [[nodiscard]] std::pair<double, double> spectral_radius() const;
  /// A, fp32 at least, [D].
  [[nodiscard]] at::Tensor injection_decay_values() const;

 private:
  ModelConfig config_;
  ParameterStore store_;
  at::Tensor router_bias_;
  RotaryTable rotary_;
  Weight embed_, norm_;
  std::vector<DenseBlock> prelude_, coda_;
  RecurrentBlock recurrent_;
  std::unique_ptr<ScreenedHead> screen_;
  int64_t screened_ = 0;      // tokens
  uint32_t screened_at_ = 0;  // the head's version
  int64_t candidates_ = 0;
};

/// A model without gradients whose weights are stored as `weights`. Computed in the same type; in float for bfloat16 on
/// the CPU, where that is exact and faster.
std::unique_ptr<Model> inference_model(const ModelConfig& config, at::Device device, at::ScalarType weights);

}  // namespace mythos
