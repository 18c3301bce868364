#include "step/op_cases.h"

#include "base/units.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"
#include "kernels/loop.h"
#include "kernels/moe.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "optim/adamw.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <map>

namespace mythos {
namespace {

using Tensors = std::vector<at::Tensor>;

// Random inputs and the numbers of the model, in the words of the cases.
class Maker {
 public:
  explicit Maker(const OpSpeedOptions& options)
      : o(options), c(options.model), generator_(at::make_generator<at::CPUGeneratorImpl>(options.seed)) {}

  const OpSpeedOptions& o;
  const ModelConfig& c;

  [[nodiscard]] int64_t tokens() const { return o.seq_len * o.micro_batch; }
  at::Tensor normal(at::IntArrayRef shape, double scale = 1) {
    return at::randn(shape, generator_).mul_(scale).to(o.type).to(o.device);
  }
  at::Tensor below(int64_t bound, at::IntArrayRef shape) {
    return at::randint(bound, shape, generator_, at::kLong).to(o.device);
  }
  [[nodiscard]] at::TensorOptions wide() const { return at::TensorOptions(o.device).dtype(accumulate_type(o.type)); }
  at::Tensor input(at::IntArrayRef shape) { return normal(shape).set_requires_grad(true); }
  // [B, T, width]
  at::Tensor states(int64_t width) { return input({o.micro_batch, o.seq_len, width}); }
  // A weight as the model has it: our form adds to its buffer, autograd's leaf does for the composite one.
  Weight weight(at::IntArrayRef shape, double scale = 0.02) {
    Weight w{normal(shape, scale).set_requires_grad(true), at::zeros(shape, wide())};
    w.value.mutable_grad() = w.grad;
    return w;
  }

 private:
  at::Generator generator_;
};

std::string shape_text(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : " x ") + with_commas(size);
  return text;
}

// An op on [tokens, width] limited by memory: so many arrays of that size are read or written.
OpCase passes(const Maker& make, int64_t width, double forward, double both) {
  OpCase op;
  op.shape = shape_text({make.tokens(), width});
  const double bytes = static_cast<double>(c10::elementSize(make.o.type)) * static_cast<double>(make.tokens()) *
                       static_cast<double>(width);
  op.forward_work = forward * bytes;
  op.both_work = both * bytes;
  return op;
}

OpCase products(Part part, double forward_flops, std::string shape) {
  OpCase op;
  op.shape = std::move(shape);
  op.part = part;
  op.forward_work = forward_flops;
  op.both_work = 3 * forward_flops;
  return op;
}

double flops(std::initializer_list<int64_t> sizes) {
  double product = 2;
  for (const int64_t size : sizes) product *= static_cast<double>(size);
  return product;
}

OpCase rms_norm_case(Maker& make) {
  OpCase op = passes(make, make.c.dim, 2, 5);
  const at::Tensor x = make.states(make.c.dim);
  const Weight w = make.weight({make.c.dim}, 1);
  op.ours = [=] { return Tensors{rms_norm(x, w)}; };
  op.composite = [=] { return Tensors{rms_norm_reference(x, w.value)}; };
  op.inputs = {x};
  return op;
}

OpCase feed_forward_case(Maker& make) {
  const int64_t d = make.c.dim, f = make.c.dense_dim();
  OpCase op = products(Part::projections, 3 * flops({make.tokens(), d, f}),
                       shape_text({make.tokens(), d}) + ", width " + with_commas(f));
  const at::Tensor x = make.states(d);
  const Weight gate_up = make.weight({2 * f, d}), down = make.weight({d, f});
  op.ours = [=] { return Tensors{feed_forward(x, gate_up, down, Part::projections)}; };
  op.composite = [=] { return Tensors{feed_forward_reference(x, gate_up.value, down.value)}; };
  op.inputs = {x};
  return op;
}

RotaryTable::Slice positions(const Maker& make, int64_t width) {
  return RotaryTable(width, make.c.rope_theta, make.o.device).slice(0, make.o.seq_len);
}

OpCase rotary_case(Maker& make) {
  const int64_t width = make.c.rotary_dim(), heads = make.c.n_heads;
  OpCase op = passes(make, heads * width, 2, 4);
  const auto rows = positions(make, width);
  const at::Tensor x = make.input({make.o.micro_batch, make.o.seq_len, heads, width});
  op.ours = [=] { return Tensors{rotate(x, rows)}; };
  op.composite = [=] { return Tensors{rotate_reference(x, rows)}; };
  op.inputs = {x};
  return op;
}

// Half of the scores are masked, and not counted.
double attention_flops(const Maker& make, int64_t qk_width, int64_t value_width) {
  return flops({make.tokens(), make.o.seq_len, make.c.n_heads, qk_width + value_width}) / 2;
}

OpCase attention_mla_case(Maker& make) {
  const ModelConfig& c = make.c;
  const MlaHeads sizes{c.n_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim};
  const int64_t qk = sizes.nope + sizes.rope;
  OpCase op = products(Part::projections, attention_flops(make, qk, sizes.value),
                       fmt::format("{}, {} heads of {}/{}", shape_text({make.o.micro_batch, make.o.seq_len}), c.n_heads,
                                   qk, sizes.value));
  const auto rows = positions(make, sizes.rope);
  const at::Tensor q = make.states(sizes.heads * qk);
  const at::Tensor kv = make.states(sizes.heads * (sizes.nope + sizes.value));
  const at::Tensor key = make.states(sizes.rope);
  op.ours = [=] { return Tensors{mla_attention(q, kv, key, rows, sizes)}; };
  op.composite = [=] { return Tensors{mla_attention_reference(q, kv, key, rows, sizes)}; };
  op.inputs = {q, kv, key};
  return op;
}

OpCase attention_gqa_case(Maker& make) {
  const ModelConfig& c = make.c;
  const int64_t d = c.head_dim();
  OpCase op = products(Part::projections, attention_flops(make, d, d),
                       fmt::format("{}, {}/{} heads of {}", shape_text({make.o.micro_batch, make.o.seq_len}), c.n_heads,
                                   c.n_kv_heads, d));
  const at::Tensor q = make.input({make.o.micro_batch, make.o.seq_len, c.n_heads, d});
  const at::Tensor k = make.input({make.o.micro_batch, make.o.seq_len, c.n_kv_heads, d});
  const at::Tensor v = make.input({make.o.micro_batch, make.o.seq_len, c.n_kv_heads, d});
  op.ours = [=] { return Tensors{causal_attention(q, k, v)}; };
  op.composite = [=] { return Tensors{causal_attention_reference(q, k, v)}; };
  op.inputs = {q, k, v};
  return op;
}

OpCase routed_experts_case(Maker& make) {
  const ModelConfig& c = make.c;
  OpCase op = products(Part::experts, 3 * flops({make.tokens(), c.n_experts_per_tok, c.dim, c.expert_dim}),
                       fmt::format("{}, {} of {} experts of {}", shape_text({make.tokens(), c.dim}),
                                   c.n_experts_per_tok, c.n_experts, with_commas(c.expert_dim)));
  const Routing routing = route(make.normal({make.tokens(), c.n_experts}), {}, c.n_experts_per_tok);
  const at::Tensor x = make.input({make.tokens(), c.dim});
  const at::Tensor weights = routing.weights.detach().clone().set_requires_grad(true);
  const Weight gate_up = make.weight({c.n_experts, 2 * c.expert_dim, c.dim});
  const Weight down = make.weight({c.n_experts, c.dim, c.expert_dim});
  op.ours = [=, chosen = routing.experts] { return Tensors{routed_experts(x, gate_up, down, chosen, weights)}; };
  op.composite = [=, chosen = routing.experts] {
    return Tensors{routed_experts_reference(x, gate_up.value, down.value, chosen, weights)};
  };
  op.inputs = {x, weights};
  return op;
}

OpCase linear_cross_entropy_case(Maker& make) {
  const int64_t n = std::min(make.tokens(), make.o.head_tokens), v = make.c.vocab_size, d = make.c.dim;
  OpCase op = products(Part::head, flops({n, v, d}), shape_text({n, d, v}));
  const at::Tensor hidden = make.input({n, d});
  const Weight w = make.weight({v, d});
  const at::Tensor targets = make.below(v, {n});
  const auto count = static_cast<double>(n);
  op.ours = [=] { return Tensors{linear_cross_entropy(hidden, w, targets, count)}; };
  op.composite = [=] { return Tensors{linear_cross_entropy_reference(hidden, w.value, targets, count)}; };
  op.inputs = {hidden};
  return op;
}

OpCase embedding_case(Maker& make) {
  OpCase op = passes(make, make.c.dim, 2, 5);
  const Weight table = make.weight({make.c.vocab_size, make.c.dim});
  const at::Tensor ids = make.below(make.c.vocab_size, {make.o.micro_batch, make.o.seq_len});
  op.shape += " of " + with_commas(make.c.vocab_size);
  op.ours = [=] { return Tensors{embedding(ids, table)}; };
  op.composite = [=] { return Tensors{at::embedding(table.value, ids)}; };
  return op;
}

OpCase loop_norm_case(Maker& make) {
  const int64_t d = make.c.dim;
  OpCase op = passes(make, d, 3, 7);
  const at::Tensor h = make.states(d), e = make.states(d), signal = loop_signal(1, d, h.options());
  const Weight w = make.weight({d}, 1);
  op.ours = [=] { return Tensors{loop_norm(h, signal, e, w)}; };
  op.composite = [=] { return Tensors{loop_norm_reference(h, signal, e, w.value)}; };
  op.inputs = {h, e};
  return op;
}

OpCase injection_case(Maker& make) {
  const int64_t d = make.c.dim;
  OpCase op = passes(make, d, 5, 10);
  const at::Tensor h = make.states(d), e = make.states(d), u = make.states(d), lora = make.states(d);
  const Weight log_a = make.weight({d}), log_dt = make.weight({1}), b = make.weight({d});
  op.ours = [=] { return Tensors{injection(h, e, u, lora, log_a, log_dt, b)}; };
  op.composite = [=] { return Tensors{injection_reference(h, e, u, lora, log_a.value, log_dt.value, b.value)}; };
  op.inputs = {h, e, u, lora};
  return op;
}

OpCase act_step_case(Maker& make) {
  const int64_t d = make.c.dim;
  OpCase op = passes(make, d, 3, 6);
  const at::Tensor h = make.states(d), out = at::zeros(h.sizes(), make.wide()).set_requires_grad(true);
  const Weight halt = make.weight({1, d}), bias = make.weight({1});
  const HaltingState fresh{at::zeros({make.o.micro_batch, make.o.seq_len}, make.wide()),
                           at::zeros({make.o.micro_batch, make.o.seq_len}, make.wide().dtype(at::kBool))};
  const double threshold = make.c.act_threshold;
  op.ours = [=] {
    HaltingState state = fresh;
    return Tensors{act_step(h, out, state, halt, bias, threshold).out};
  };
  op.composite = [=] {
    HaltingState state = fresh;
    return Tensors{act_step_reference(h, out, state, halt.value, bias.value, threshold).out};
  };
  op.inputs = {h, out};
  return op;
}

// What ends a loop: h, e, u and the sum read, the state and the sum written; backward the same with their gradients.
OpCase loop_update_case(Maker& make) {
  const int64_t d = make.c.dim, rank = make.c.lora_rank;
  OpCase op = passes(make, d, 4, 10);
  const double sums = static_cast<double>(c10::elementSize(accumulate_type(make.o.type))) *
                      static_cast<double>(make.tokens()) * static_cast<double>(d);
  op.forward_work += 2 * sums;
  op.both_work += 3 * sums;
  const at::Tensor h = make.states(d), e = make.states(d), u = make.states(d), low = make.states(rank);
  const at::Tensor out = at::zeros(h.sizes(), make.wide()).set_requires_grad(true);
  const LoopWeights w{make.weight({rank, d}), make.weight({d}),    make.weight({1}),
                      make.weight({d}),       make.weight({1, d}), make.weight({1})};
  const HaltingState fresh{at::zeros({make.o.micro_batch, make.o.seq_len}, make.wide()),
                           at::zeros({make.o.micro_batch, make.o.seq_len}, make.wide().dtype(at::kBool))};
  const double threshold = make.c.act_threshold;
  op.ours = [=] {
    HaltingState state = fresh;
    const LoopStep step = loop_update(h, e, u, low, out, state, w, threshold);
    return Tensors{step.state, step.act.out};
  };
  op.composite = [=] {
    HaltingState state = fresh;
    const LoopStep step = loop_update_reference(h, e, u, low, out, state, w, threshold);
    return Tensors{step.state, step.act.out};
  };
  op.inputs = {h, e, u, low, out};
  return op;
}

// The optimizer as the model has it, on one block of each kind with few experts: its speed does not depend on more.
OpCase adamw_case(Maker& make) {
  ModelConfig part = make.c;
  part.vocab_size = std::min<int64_t>(part.vocab_size, 8192);
  part.n_experts = std::min(part.n_experts, std::max<int64_t>(4, part.n_experts_per_tok));
  part.prelude_layers = std::min<int64_t>(part.prelude_layers, 1);
  part.coda_layers = std::min<int64_t>(part.coda_layers, 1);
  struct State {
    ParameterStore store;
    AdamW optimizer;
    std::vector<at::Tensor> first, second;
    int64_t steps = 0;
    State(const ModelConfig& c, const OpSpeedOptions& o)
        : store(c, o.device, o.type, at::kFloat, true), optimizer(store, {.decay_vectors = true}) {}
  };
  const auto state = std::make_shared<State>(part, make.o);
  double elements = 0;
  for (size_t u = 0; u < state->store.units(); ++u) {
    state->store.gradients(u).copy_(make.normal({state->store.gradients(u).numel()}, 1e-3));
    state->first.push_back(at::zeros_like(state->store.values(u)));
    state->second.push_back(at::zeros_like(state->store.values(u)));
    elements += static_cast<double>(state->store.values(u).numel());
  }
  OpCase op;
  op.shape = with_commas(static_cast<int64_t>(elements)) + " parameters";
  op.differentiable = false;
  op.forward_work = op.both_work = (7 * 4 + (make.o.type == at::kFloat ? 0 : 2)) * elements;
  constexpr double lr = 1e-5;
  op.ours = [=] {
    state->optimizer.step(lr, 1.0);
    return Tensors{};
  };
  op.composite = [=] {
    const AdamWOptions a;
    ++state->steps;
    const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(state->steps));
    const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(state->steps));
    for (size_t u = 0; u < state->store.units(); ++u) {
      at::Tensor p = state->store.values(u), m = state->first[u], v = state->second[u];
      const at::Tensor g = state->store.gradients(u);
      p.mul_(1 - lr * a.weight_decay);
      m.lerp_(g, 1 - a.beta1);
      v.mul_(a.beta2).addcmul_(g, g, 1 - a.beta2);
      p.addcdiv_(m, v.sqrt().div_(std::sqrt(correction2)).add_(a.eps), -lr / correction1);
    }
    return Tensors{};
  };
  return op;
}

using CaseMaker = OpCase (*)(Maker&);
const std::vector<std::pair<std::string, CaseMaker>>& cases() {
  static const std::vector<std::pair<std::string, CaseMaker>> all{{"rms_norm", rms_norm_case},
                                                                  {"feed_forward", feed_forward_case},
                                                                  {"rotary", rotary_case},
                                                                  {"attention_mla", attention_mla_case},
                                                                  {"attention_gqa", attention_gqa_case},
                                                                  {"routed_experts", routed_experts_case},
                                                                  {"linear_cross_entropy", linear_cross_entropy_case},
                                                                  {"embedding", embedding_case},
                                                                  {"loop_norm", loop_norm_case},
                                                                  {"injection", injection_case},
                                                                  {"act_step", act_step_case},
                                                                  {"loop_update", loop_update_case},
                                                                  {"adamw", adamw_case}};
  return all;
}

}  // namespace

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& [name, make] : cases()) list.push_back(name);
    return list;
  }();
  return names;
}

OpCase op_case(const std::string& name, const OpSpeedOptions& options) {
  Maker maker(options);
  for (const auto& [known, make] : cases()) {
    if (known == name) return make(maker);
  }
  TORCH_CHECK(false, "no op is named ", name);
}

}  // namespace mythos
