#include "model/parameters.h"

#include "kernels/part.h"

#include "base/error.h"
#include "base/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace mythos {

int64_t LeafLayout::numel() const {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

namespace {

constexpr int64_t alignment = 16;  // elements: 64 bytes of fp32, what vector loads and grouped GEMMs want

int64_t aligned(int64_t n) { return (n + alignment - 1) / alignment * alignment; }

// A leaf before it has an offset: its parts in order.
struct LeafPlan {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::string> parts;
};

class LeafPlanner {
 public:
  LeafPlanner(const ModelConfig& config, int64_t unit) : c_(config), unit_(unit) {}

  void single(const std::string& name, std::vector<int64_t> shape) {
    plans_.push_back({name, std::move(shape), {name}});
  }
  void joined(const std::string& name, std::vector<int64_t> shape, std::vector<std::string> parts) {
    plans_.push_back({name, std::move(shape), std::move(parts)});
  }

  void feed_forward(const std::string& p, int64_t width) {
    joined(p + "gate_up", {2 * width, c_.dim}, {p + "gate.weight", p + "up.weight"});
    single(p + "down.weight", {c_.dim, width});
  }

  void block(const std::string& p, bool moe) {
    const std::string a = p + "attn.";
    if (c_.attn_type == AttentionType::mla) {
      joined(a + "down", {c_.q_lora_rank + c_.kv_lora_rank + c_.qk_rope_head_dim, c_.dim},
             {a + "q_down.weight", a + "kv_down.weight"});
      joined(a + "q_up", {c_.n_heads * (c_.qk_nope_head_dim + c_.qk_rope_head_dim), c_.q_lora_rank},
             {a + "q_up_nope.weight", a + "q_up_rope.weight"});
      single(a + "kv_up.weight", {c_.n_heads * (c_.qk_nope_head_dim + c_.v_head_dim), c_.kv_lora_rank});
      single(a + "wo.weight", {c_.dim, c_.n_heads * c_.v_head_dim});
      single(a + "q_norm.weight", {c_.q_lora_rank});
      single(a + "kv_norm.weight", {c_.kv_lora_rank});
    } else {
      joined(a + "qkv", {(c_.n_heads + 2 * c_.n_kv_heads) * c_.head_dim(), c_.dim},
             {a + "wq.weight", a + "wk.weight", a + "wv.weight"});
      single(a + "wo.weight", {c_.dim, c_.n_heads * c_.head_dim()});
    }
    single(p + "attn_norm.weight", {c_.dim});
    single(p + "ffn_norm.weight", {c_.dim});
    if (!moe) {
      feed_forward(p + "ffn.", c_.dense_dim());
      return;
    }
    single(p + "ffn.router.weight", {c_.n_experts, c_.dim});
    std::vector<std::string> gate_up, down;
    for (int64_t e = 0; e < c_.n_experts; ++e) {
      const std::string x = fmt::format("{}ffn.routed_experts.{}.", p, e);
      gate_up.insert(gate_up.end(), {x + "gate.weight", x + "up.weight"});
      down.push_back(x + "down.weight");
    }
    joined(p + "ffn.routed.gate_up", {c_.n_experts, 2 * c_.expert_dim, c_.dim}, std::move(gate_up));
    joined(p + "ffn.routed.down", {c_.n_experts, c_.dim, c_.expert_dim}, std::move(down));
    for (int64_t e = 0; e < c_.n_shared_experts; ++e) {
      feed_forward(fmt::format("{}ffn.shared_experts.{}.", p, e), c_.shared_dim());
    }
  }

  void recurrent() {
    block("recurrent.block.", true);
    single("recurrent.injection.log_A", {c_.dim});
    single("recurrent.injection.log_dt", {1});
    single("recurrent.injection.B", {c_.dim});
    single("recurrent.act.halt.weight", {1, c_.dim});
    single("recurrent.act.halt.bias", {1});
    single("recurrent.lora.B", {c_.lora_rank, c_.dim});
    single("recurrent.lora.down.weight", {c_.lora_rank, c_.dim});
    single("recurrent.lora.scale.weight", {c_.max_loop_iters, c_.lora_rank});
    single("recurrent.norm.weight", {c_.dim});
  }

  // Matrices first, vectors after them, so that "decay matrices only" is two ranges of one buffer.
  FlatLayout::Unit place(const std::unordered_map<std::string, size_t>& index, std::vector<ParameterPlace>& places,
                         const std::vector<ParameterSpec>& specs) const {
    FlatLayout::Unit u;
    u.name = unit_name(c_, unit_);
    int64_t offset = 0;
    for (const bool matrices : {true, false}) {
      for (const auto& plan : plans_) {
        if ((plan.shape.size() > 1) != matrices) continue;
        LeafLayout leaf{plan.name, plan.shape, offset, matrices};
        int64_t at = offset;
        for (const auto& part : plan.parts) {
          const size_t i = index.at(part);
          places[i] = {unit_, at};
          at += specs[i].numel();
        }
        offset = aligned(offset + leaf.numel());
        u.leaves.push_back(std::move(leaf));
      }
      if (matrices) u.matrices_end = offset;
    }
    u.size = offset;
    return u;
  }

 private:
  const ModelConfig& c_;
  int64_t unit_;
  std::vector<LeafPlan> plans_;
};

}  // namespace

FlatLayout flat_layout(const ModelConfig& c) {
  FlatLayout layout;
  layout.parameters = parameter_specs(c);
  layout.places.resize(layout.parameters.size());
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < layout.parameters.size(); ++i) index[layout.parameters[i].name] = i;
  for (int64_t u = 0; u < unit_count(c); ++u) {
    LeafPlanner planner(c, u);
    if (u == 0) {
      planner.single("embed.weight", {c.vocab_size, c.dim});
      planner.single("norm.weight", {c.dim});
    } else if (u == c.prelude_layers + 1) {
      planner.recurrent();
    } else {
      planner.block(unit_name(c, u) + ".", false);
    }
    layout.units.push_back(planner.place(index, layout.places, layout.parameters));
  }
  return layout;
}

int64_t Partition::shard_size(int64_t unit_size) const { return aligned((unit_size + parts - 1) / parts); }

namespace {

// Takes a tensor's memory away, or gives it new memory, uninitialised. Views of it stay views of it.
void set_memory(const at::Tensor& tensor, bool there) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(tensor.numel() * tensor.element_size());
  if (there == (storage->nbytes() != 0)) return;
  if (there) {
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
  } else {
    storage->set_nbytes(0);
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  }
}

// The same memory with a version counter of its own: what is written is no change that autograd must know of.
at::Tensor unwatched(const at::Tensor& t) { return t.variable_data(); }

}  // namespace

// Without gradients: norms, the router, the looped block's small ones are widened once and not for every token.
constexpr int64_t small_leaf = 64 << 10;

ParameterStore::ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute,
                               at::ScalarType master, bool gradients, const Partition& partition)
    : layout_(flat_layout(config)), partition_(partition), device_(device), compute_(compute), master_(master) {
  const auto options = at::TensorOptions(device);
  const bool same = compute == master;
  // Without gradients the ops take the large weights as they are stored.
  const auto whole_type = gradients ? compute : master;
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    const auto& unit = layout_.units[u];
    const int64_t whole = partition_.parts * shard(u);
    const auto own = [&](const at::Tensor& t) { return t.narrow(0, own_begin(u), shard(u)); };
    whole_values_.push_back(at::zeros({whole}, options.dtype(whole_type)));
    const bool shared = whole_type == master && !partition_.transient;
    values_.push_back(shared ? own(whole_values_[u]) : at::zeros({shard(u)}, options.dtype(master)));
    if (gradients) {
      whole_gradients_.push_back(at::zeros({whole}, options.dtype(master)));
      gradients_.push_back(partition_.transient ? at::zeros({shard(u)}, options.dtype(master))
                                                : own(whole_gradients_[u]));
    }
    for (const auto& leaf : unit.leaves) {
      Weight w;
      w.value = whole_values_[u].narrow(0, leaf.offset, leaf.numel()).view(leaf.shape).detach();
      if (!gradients && !same && leaf.numel() <= small_leaf) w.value = at::zeros(leaf.shape, options.dtype(compute));
      if (gradients) {
        w.grad = whole_gradients_[u].narrow(0, leaf.offset, leaf.numel()).view(leaf.shape);
        w.value.set_requires_grad(true);
        w.value.mutable_grad() = w.grad;
      }
      leaves_.emplace(leaf.name, std::move(w));
    }
    release_values(u);
    release_gradients(u);
  }
}

Weight ParameterStore::leaf(const std::string& name) const { return leaves_.at(name); }

std::vector<NamedTensor> ParameterStore::named(const std::vector<at::Tensor>& flat) const {
  std::vector<NamedTensor> out;
  if (flat.empty()) return out;
  out.reserve(layout_.parameters.size());
  for (size_t i = 0; i < layout_.parameters.size(); ++i) {
    const auto& spec = layout_.parameters[i];
    const auto& place = layout_.places[i];
    out.push_back(
        {spec.name, flat[static_cast<size_t>(place.unit)].narrow(0, place.offset, spec.numel()).view(spec.shape)});
  }
  return out;
}

void ParameterStore::set_part(const std::vector<at::Tensor>& own, size_t parameter, const at::Tensor& value) const {
  const at::NoGradGuard no_grad;
  const auto& place = layout_.places[parameter];
  const auto u = static_cast<size_t>(place.unit);
  const int64_t begin = std::max(place.offset, own_begin(u));
  const int64_t end = std::min(place.offset + value.numel(), own_begin(u) + shard(u));
  if (begin >= end) return;
  own[u]
      .narrow(0, begin - own_begin(u), end - begin)
      .copy_(value.reshape({-1}).narrow(0, begin - place.offset, end - begin));
}

void ParameterStore::set_value(size_t parameter, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  set_part(values_, parameter, value);
  if (partition_.parts == 1 || partition_.transient) return;
  const auto& place = layout_.places[parameter];
  whole_values_[static_cast<size_t>(place.unit)].narrow(0, place.offset, value.numel()).copy_(value.reshape({-1}));
}

void ParameterStore::refresh_compute() {
  for (size_t u = 0; u < units(); ++u) refresh_compute(u);
}

void ParameterStore::refresh_compute(size_t unit) {
  const at::Tensor whole = unwatched(whole_values_[unit]);
  if (whole.storage().nbytes() == 0) return;  // not held
  const at::Tensor own = whole.narrow(0, own_begin(unit), shard(unit));
  if (own.data_ptr() != values_[unit].data_ptr()) own.copy_(values_[unit]);
  if (compute_ == whole.scalar_type()) return;
  for (const LeafLayout& leaf : layout_.units[unit].leaves) {
    at::Tensor value = leaves_.at(leaf.name).value;
    if (value.scalar_type() == compute_) value.copy_(whole.narrow(0, leaf.offset, leaf.numel()).view(leaf.shape));
  }
}

at::Tensor ParameterStore::narrow_copy(size_t unit) const {
  const at::Tensor& whole = whole_values_[unit];
  if (whole.scalar_type() != at::kBFloat16 || master_ != at::kFloat || partition_.transient) return {};
  return unwatched(whole).narrow(0, own_begin(unit), shard(unit));
}

void ParameterStore::zero_gradients() {
  const PartScope scope(Part::optimizer);
  for (size_t u = 0; u < whole_gradients_.size(); ++u) {
    if (partition_.transient) {
      release_gradients(u);
    } else {
      whole_gradients_[u].zero_();
    }
  }
}

void ParameterStore::hold_values(size_t unit) {
  if (partition_.transient) set_memory(whole_values_[unit], true);
}

void ParameterStore::release_values(size_t unit) {
  if (partition_.transient) set_memory(whole_values_[unit], false);
}

void ParameterStore::hold_gradients(size_t unit) {
  if (!partition_.transient || whole_gradients_.empty() || whole_gradients_[unit].storage().nbytes() != 0) return;
  set_memory(whole_gradients_[unit], true);
  unwatched(whole_gradients_[unit]).zero_();
}

void ParameterStore::release_gradients(size_t unit) {
  if (partition_.transient && !whole_gradients_.empty()) set_memory(whole_gradients_[unit], false);
}

void initialize(ParameterStore& store, const ModelConfig& config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const auto& parameters = store.layout().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    const auto ends_with = [&name](std::string_view end) { return name.ends_with(end); };
    const auto fill = [&](double x) { store.set_value(i, at::full(parameters[i].shape, x, at::kDouble)); };
    if (ends_with("log_A") || ends_with("log_dt")) {
      fill(0);
    } else if (ends_with("injection.B")) {
      fill(0.1);
    } else if (ends_with("norm.weight")) {
      fill(1);
    } else {
      // Drawn on the CPU in fp32, one generator per parameter: the same values whatever the device, dtype or layout.
      auto generator = at::make_generator<at::CPUGeneratorImpl>(derive_seed(seed, 0, name));
      at::Tensor drawn = at::empty(parameters[i].shape, at::kFloat);
      if (ends_with("halt.bias")) {
        const double bound = 1.0 / std::sqrt(static_cast<double>(config.dim));
        drawn.uniform_(-bound, bound, generator);
      } else {
        drawn.normal_(0.0, 0.02, generator);
      }
      store.set_value(i, drawn);
    }
  }
  store.refresh_compute();
}

}  // namespace mythos
