// Names, counts and places of parameters; the flat buffers; initial values.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "base/error.h"

#include <cmath>
#include <set>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// ---- names and counts -----------------------------------------------------------------------------------------------

TEST(ParameterList, ArticleModelHas339241922Parameters) {
  ModelConfig c = preset("mythos_300m");
  c.vocab_size = 199998;
  EXPECT_EQ(parameter_count(c), 339241922);
}

// The count from a formula of its own: embedding and norm, dense blocks, the recurrent block, its extras.
int64_t counted_by_hand(const ModelConfig& c) {
  const int64_t head = c.qk_nope_head_dim + c.qk_rope_head_dim;
  const int64_t mla = c.dim * c.q_lora_rank + c.q_lora_rank + c.q_lora_rank * c.n_heads * head +
                      c.dim * (c.kv_lora_rank + c.qk_rope_head_dim) + c.kv_lora_rank +
                      c.kv_lora_rank * c.n_heads * (c.qk_nope_head_dim + c.v_head_dim) +
                      c.n_heads * c.v_head_dim * c.dim;
  const int64_t gqa = 2 * c.dim * c.dim + 2 * c.dim * c.n_kv_heads * (c.dim / c.n_heads);
  const int64_t attention = (c.attn_type == AttentionType::mla ? mla : gqa) + 2 * c.dim;
  const int64_t dense = 3 * c.dim * (c.dim * 4 / 3);
  const int64_t experts = c.n_experts * c.dim + 3 * c.dim * c.expert_dim * c.n_experts +
                          3 * c.dim * c.expert_dim * c.n_experts_per_tok * c.n_shared_experts;
  const int64_t extras = 2 * c.dim + 1 + c.dim + 1 + 2 * c.lora_rank * c.dim + c.max_loop_iters * c.lora_rank + c.dim;
  return c.vocab_size * c.dim + c.dim + (c.prelude_layers + c.coda_layers) * (attention + dense) + attention + experts +
         extras;
}

TEST(ParameterList, EveryPresetCountsRight) {
  EXPECT_EQ(preset_names().size(), 8U);
  int64_t smaller = 0;
  for (const auto& name : preset_names()) {
    ModelConfig c = preset(name);
    EXPECT_TRUE(problems(c).empty()) << name << ": " << problems(c).front();
    EXPECT_EQ(parameter_count(c), counted_by_hand(c)) << name;
    EXPECT_GT(parameter_count(c), smaller) << name;
    smaller = parameter_count(c);
    c.attn_type = AttentionType::gqa;
    EXPECT_EQ(parameter_count(c), counted_by_hand(c)) << name << " with gqa";
  }
}

TEST(ParameterList, NamesAndOrderAreTheReferences) {
  for (const auto& name : preset_names()) {
    const ModelConfig c = preset(name);
    const auto specs = parameter_specs(c);
    std::set<std::string> names;
    for (const auto& s : specs) EXPECT_TRUE(names.insert(s.name).second) << s.name << " twice";
    EXPECT_EQ(names.count("head.weight"), 0U);  // tied
    EXPECT_EQ(names.count("recurrent.block.ffn.router_bias"), 0U);
    EXPECT_EQ(specs.front().name, "embed.weight");
    EXPECT_EQ(specs.back().name, "norm.weight");
    const auto at = [&](const std::string& wanted) {
      for (size_t i = 0; i < specs.size(); ++i) {
        if (specs[i].name == wanted) return i;
      }
      ADD_FAILURE() << wanted << " is missing in " << name;
      return size_t{0};
    };
    const std::string last = std::to_string(c.n_experts - 1);
    const std::string order[] = {"prelude.0.attn_norm.weight",
                                 "prelude.0.ffn_norm.weight",
                                 "prelude.0.attn.q_down.weight",
                                 "prelude.0.attn.q_norm.weight",
                                 "prelude.0.attn.q_up_nope.weight",
                                 "prelude.0.attn.q_up_rope.weight",
                                 "prelude.0.attn.kv_down.weight",
                                 "prelude.0.attn.kv_norm.weight",
                                 "prelude.0.attn.kv_up.weight",
                                 "prelude.0.attn.wo.weight",
                                 "prelude.0.ffn.gate.weight",
                                 "prelude.0.ffn.up.weight",
                                 "prelude.0.ffn.down.weight",
                                 "recurrent.block.attn_norm.weight",
                                 "recurrent.block.ffn.router.weight",
                                 "recurrent.block.ffn.routed_experts.0.gate.weight",
                                 "recurrent.block.ffn.routed_experts." + last + ".down.weight",
                                 "recurrent.block.ffn.shared_experts.0.up.weight",
                                 "recurrent.injection.log_A",
                                 "recurrent.injection.log_dt",
                                 "recurrent.injection.B",
                                 "recurrent.act.halt.weight",
                                 "recurrent.act.halt.bias",
                                 "recurrent.lora.B",
                                 "recurrent.lora.down.weight",
                                 "recurrent.lora.scale.weight",
                                 "recurrent.norm.weight",
                                 "coda.1.ffn.down.weight",
                                 "norm.weight"};
    size_t before = 0;
    for (const auto& wanted : order) {
      const size_t i = at(wanted);
      EXPECT_GT(i, before) << wanted;
      before = i;
    }
    EXPECT_EQ(specs[at("recurrent.block.ffn.routed_experts.7.gate.weight")].shape,
              (std::vector<int64_t>{c.expert_dim, c.dim}));
    EXPECT_EQ(specs[at("recurrent.lora.B")].shape, (std::vector<int64_t>{c.lora_rank, c.dim}));
    EXPECT_EQ(specs[at("prelude.0.attn.kv_down.weight")].shape,
              (std::vector<int64_t>{c.kv_lora_rank + c.qk_rope_head_dim, c.dim}));
  }
}

// ---- layout ---------------------------------------------------------------------------------------------------------

void check_layout(const ModelConfig& c) {
  const FlatLayout layout = flat_layout(c);
  ASSERT_EQ(static_cast<int64_t>(layout.units.size()), unit_count(c));
  ASSERT_EQ(layout.places.size(), layout.parameters.size());
  std::vector<std::vector<std::pair<int64_t, int64_t>>> used(layout.units.size());
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const auto& p = layout.parameters[i];
    const auto& place = layout.places[i];
    ASSERT_EQ(place.unit, p.unit) << p.name;
    used[static_cast<size_t>(place.unit)].emplace_back(place.offset, place.offset + p.numel());
    // A parameter lies inside one leaf, on the side of the unit its decay says.
    const auto& unit = layout.units[static_cast<size_t>(place.unit)];
    bool inside = false;
    for (const auto& leaf : unit.leaves) {
      if (place.offset < leaf.offset || place.offset + p.numel() > leaf.offset + leaf.numel()) continue;
      inside = true;
      EXPECT_EQ(leaf.decays, p.shape.size() > 1) << p.name;
      EXPECT_EQ(place.offset < unit.matrices_end, leaf.decays) << p.name;
    }
    EXPECT_TRUE(inside) << p.name;
  }
  for (size_t u = 0; u < used.size(); ++u) {
    const auto& unit = layout.units[u];
    EXPECT_EQ(unit.name, unit_name(c, static_cast<int64_t>(u)));
    EXPECT_EQ(unit.size % 16, 0);
    std::sort(used[u].begin(), used[u].end());
    int64_t end = 0, covered = 0, in_leaves = 0;
    for (const auto& [from, to] : used[u]) {
      EXPECT_GE(from, end) << "parameters overlap in " << unit.name;
      covered += to - from;
      end = to;
    }
    EXPECT_LE(end, unit.size);
    int64_t leaf_end = 0;
    for (const auto& leaf : unit.leaves) {
      EXPECT_EQ(leaf.offset % 16, 0) << leaf.name;
      EXPECT_GE(leaf.offset, leaf_end) << leaf.name;
      leaf_end = leaf.offset + leaf.numel();
      in_leaves += leaf.numel();
    }
    EXPECT_LE(leaf_end, unit.size);
    EXPECT_EQ(covered, in_leaves) << unit.name;  // leaves hold the parameters and nothing else
  }
}

TEST(Layout, PlacesAreDisjointInsideAlignedLeavesAndCoverThem) {
  check_layout(small_config(AttentionType::mla));
  check_layout(small_config(AttentionType::gqa));
  ModelConfig bare = small_config();
  bare.prelude_layers = bare.coda_layers = bare.n_shared_experts = 0;
  check_layout(bare);
  for (const auto& name : preset_names()) check_layout(preset(name));
}

TEST(Layout, NamedViewsWriteThroughToLeaves) {
  const ModelConfig c = small_config();
  ParameterStore store(c, at::kCPU, at::kFloat, at::kFloat, true);
  const auto all = store.named_values();
  for (size_t i = 0; i < all.size(); ++i) all[i].tensor.fill_(static_cast<double>(i + 1));
  const auto index = [&](const std::string& name) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].name == name) return static_cast<double>(i + 1);
    }
    throw std::out_of_range(name);
  };
  const at::NoGradGuard no_grad;
  const auto is = [&](const at::Tensor& t, const std::string& name) { return t.eq(index(name)).all().item<bool>(); };
  const at::Tensor down = store.leaf("prelude.0.attn.down").value;
  EXPECT_TRUE(is(down.narrow(0, 0, c.q_lora_rank), "prelude.0.attn.q_down.weight"));
  EXPECT_TRUE(is(down.narrow(0, c.q_lora_rank, 18), "prelude.0.attn.kv_down.weight"));
  const at::Tensor experts = store.leaf("recurrent.block.ffn.routed.gate_up").value;
  ASSERT_EQ(experts.sizes(), (at::IntArrayRef{5, 22, 32}));
  EXPECT_TRUE(is(experts[3].narrow(0, 0, 11), "recurrent.block.ffn.routed_experts.3.gate.weight"));
  EXPECT_TRUE(is(experts[3].narrow(0, 11, 11), "recurrent.block.ffn.routed_experts.3.up.weight"));
  EXPECT_TRUE(
      is(store.leaf("recurrent.block.ffn.routed.down").value[4], "recurrent.block.ffn.routed_experts.4.down.weight"));
  EXPECT_TRUE(is(store.leaf("coda.1.ffn.gate_up").value.narrow(0, 42, 42), "coda.1.ffn.up.weight"));
  EXPECT_TRUE(is(store.leaf("embed.weight").value, "embed.weight"));
  // All parameters together are the buffers without their padding, and gradients lie alike.
  int64_t total = 0;
  for (const auto& n : all) total += n.tensor.numel();
  EXPECT_EQ(total, parameter_count(c));
  store.leaf("prelude.0.attn.down").grad.fill_(3);
  EXPECT_TRUE(named(store.named_gradients(), "prelude.0.attn.kv_down.weight").eq(3).all().item<bool>());
  EXPECT_THROW((void)store.leaf("prelude.0.attn.q_down.weight"), std::out_of_range);
}

// ---- two dtypes -----------------------------------------------------------------------------------------------------

TEST(Bfloat16Store, ComputesFromACopyAndCollectsGradientsInFloat) {
  const ModelConfig c = small_config();
  ParameterStore store(c, at::kCPU, at::kBFloat16, at::kFloat, true);
  const at::NoGradGuard no_grad;
  const at::Tensor master = named(store.named_values(), "recurrent.norm.weight");
  const Weight leaf = store.leaf("recurrent.norm.weight");
  EXPECT_EQ(master.scalar_type(), at::kFloat);
  EXPECT_EQ(leaf.value.scalar_type(), at::kBFloat16);
  master.fill_(1.001);
  EXPECT_EQ(leaf.value[0].item<double>(), 0);
  store.refresh_compute();
  EXPECT_EQ(leaf.value[0].item<double>(), 1.0);  // rounded to bf16; the master keeps its digits
  EXPECT_FLOAT_EQ(master[0].item<float>(), 1.001F);

  // 1 + 300 x 2^-9: in bf16 each addition would round back to 1.
  EXPECT_EQ(leaf.grad.scalar_type(), at::kFloat);
  leaf.grad.fill_(1);
  for (int i = 0; i < 300; ++i) leaf.grad.add_(at::full_like(leaf.value, 0x1p-9));
  EXPECT_EQ(named(store.named_gradients(), "recurrent.norm.weight")[0].item<double>(), 1 + 300 * 0x1p-9);
  store.zero_gradients();
  EXPECT_EQ(leaf.grad.abs().max().item<double>(), 0);
}

TEST(InferenceStore, HasNoGradients) {
  const ParameterStore store(small_config(), at::kCPU, at::kFloat, at::kFloat, false);
  EXPECT_TRUE(store.named_gradients().empty());
  EXPECT_FALSE(store.leaf("embed.weight").grad.defined());
  EXPECT_FALSE(store.leaf("embed.weight").value.requires_grad());
}

// ---- initial values -------------------------------------------------------------------------------------------------

TEST(Initialize, DrawsTheReferencesDistributions) {
  ModelConfig c = small_config();
  c.dim = 128;
  c.max_loop_iters = 64;
  c.lora_rank = 16;
  ParameterStore store(c, at::kCPU, at::kFloat, at::kFloat, false);
  initialize(store, c, 7);
  std::vector<at::Tensor> drawn;
  for (const auto& [name, t] : store.named_values()) {
    if (name.ends_with("norm.weight")) {
      EXPECT_TRUE(t.eq(1).all().item<bool>()) << name;
    } else if (name == "recurrent.injection.B") {
      EXPECT_TRUE(t.eq(0.1F).all().item<bool>());
    } else if (name.starts_with("recurrent.injection")) {
      EXPECT_TRUE(t.eq(0).all().item<bool>()) << name;
    } else if (name == "recurrent.act.halt.bias") {
      EXPECT_LE(t.abs().item<double>(), 1 / std::sqrt(128.0));
      EXPECT_NE(t.item<double>(), 0);
    } else {
      // The standard deviation of n values is known to 1 / sqrt(2 n): five times that.
      const auto n = static_cast<double>(t.numel());
      EXPECT_NEAR(t.std().item<double>() / 0.02, 1, 5 / std::sqrt(2 * n)) << name;
      EXPECT_NEAR(t.mean().item<double>() / 0.02, 0, 5 / std::sqrt(n)) << name;
      drawn.push_back(t.flatten().narrow(0, 0, 16));
    }
  }
  // No two parameters are drawn alike.
  for (size_t i = 0; i < drawn.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(drawn[i].equal(drawn[j]));
  }
}

TEST(Initialize, HaltingBiasFillsItsRange) {
  const ModelConfig c = small_config();
  ParameterStore store(c, at::kCPU, at::kFloat, at::kFloat, false);
  const double bound = 1 / std::sqrt(32.0);
  double low = 1, high = -1;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    initialize(store, c, seed);
    const double b = named(store.named_values(), "recurrent.act.halt.bias").item<double>();
    low = std::min(low, b);
    high = std::max(high, b);
  }
  EXPECT_GE(low, -bound);
  EXPECT_LE(high, bound);
  EXPECT_LT(low, -0.7 * bound);
  EXPECT_GT(high, 0.7 * bound);
}

TEST(Initialize, DependsOnTheSeedAloneNotOnTheDtype) {
  const ModelConfig c = small_config();
  const auto values = [&](at::ScalarType type, uint64_t seed) {
    ParameterStore store(c, at::kCPU, type, type, false);
    initialize(store, c, seed);
    return store.named_values();
  };
  const auto a = values(at::kFloat, 1), again = values(at::kFloat, 1), other = values(at::kFloat, 2);
  const auto wide = values(at::kDouble, 1);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].tensor.equal(again[i].tensor)) << a[i].name;
    EXPECT_TRUE(wide[i].tensor.to(at::kFloat).equal(a[i].tensor)) << a[i].name;
  }
  EXPECT_FALSE(a[0].tensor.equal(other[0].tensor));
}

}  // namespace
}  // namespace mythos
