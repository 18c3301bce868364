#include "model/config.h"

#include "base/error.h"
#include "base/units.h"

#include <cmath>

namespace mythos {

std::string_view to_string(AttentionType type) { return type == AttentionType::mla ? "mla" : "gqa"; }

int64_t ModelConfig::qk_head_dim() const {
  return attn_type == AttentionType::mla ? qk_nope_head_dim + qk_rope_head_dim : head_dim();
}
int64_t ModelConfig::value_head_dim() const { return attn_type == AttentionType::mla ? v_head_dim : head_dim(); }
int64_t ModelConfig::rotary_dim() const { return attn_type == AttentionType::mla ? qk_rope_head_dim : head_dim(); }

namespace {

// The reference's variants.py, and the 300M model of the article.
struct Preset {
  const char* name;
  ModelConfig config;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = [] {
    const auto make = [](int64_t vocab, int64_t dim, int64_t heads, int64_t kv_heads, int64_t seq, int64_t loops,
                         int64_t layers, int64_t kv_rank, int64_t q_rank, int64_t rope, int64_t nope, int64_t experts,
                         int64_t shared, int64_t top_k, int64_t expert_dim, double theta, int64_t lora,
                         int64_t output) {
      ModelConfig c;
      c.vocab_size = vocab;
      c.dim = dim;
      c.n_heads = heads;
      c.n_kv_heads = kv_heads;
      c.max_seq_len = seq;
      c.max_loop_iters = loops;
      c.prelude_layers = c.coda_layers = layers;
      c.kv_lora_rank = kv_rank;
      c.q_lora_rank = q_rank;
      c.qk_rope_head_dim = rope;
      c.qk_nope_head_dim = c.v_head_dim = nope;
      c.n_experts = experts;
      c.n_shared_experts = shared;
      c.n_experts_per_tok = top_k;
      c.expert_dim = expert_dim;
      c.rope_theta = theta;
      c.lora_rank = lora;
      c.max_output_tokens = output;
      return c;
    };
    return std::vector<Preset>{
        {"mythos_300m", make(32000, 1024, 16, 4, 2048, 8, 2, 128, 256, 32, 64, 32, 1, 2, 1024, 5e5, 8, 4096)},
        {"mythos_1b", make(32000, 2048, 16, 4, 4096, 16, 2, 256, 512, 32, 64, 64, 2, 4, 2048, 5e5, 8, 4096)},
        {"mythos_3b", make(32000, 3072, 24, 6, 4096, 16, 2, 384, 768, 32, 96, 64, 2, 4, 4096, 5e5, 8, 4096)},
        {"mythos_10b", make(32000, 4096, 32, 8, 8192, 24, 2, 512, 1024, 64, 128, 128, 2, 4, 5632, 5e5, 16, 4096)},
        {"mythos_50b", make(32000, 6144, 48, 8, 8192, 32, 3, 512, 1536, 64, 128, 256, 4, 4, 9728, 5e5, 32, 4096)},
        {"mythos_100b",
         make(32000, 8192, 64, 8, 1000000, 32, 4, 512, 2048, 64, 128, 256, 4, 8, 13568, 1e6, 64, 131072)},
        {"mythos_500b",
         make(100000, 12288, 96, 16, 1000000, 48, 4, 1024, 3072, 64, 128, 512, 8, 8, 23040, 1e6, 128, 131072)},
        {"mythos_1t",
         make(100000, 16384, 128, 16, 1000000, 64, 6, 1024, 4096, 64, 128, 512, 8, 8, 34560, 2e6, 256, 131072)},
    };
  }();
  return list;
}

}  // namespace

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> n;
    for (const auto& p : presets()) n.emplace_back(p.name);
    return n;
  }();
  return names;
}

ModelConfig preset(std::string_view name) {
  for (const auto& p : presets()) {
    if (name == p.name || fmt::format("mythos_{}", name) == p.name) return p.config;
  }
  throw usage_error(fmt::format("no preset is named '{}'", name), suggestion(name, preset_names()));
}

namespace {

// Sizes beyond these overflow products of them, or make lists of parameters that fill the memory by themselves.
constexpr int64_t most_size = int64_t{1} << 24;
constexpr int64_t most_layers = 1024;
constexpr int64_t most_experts = 16384;
constexpr double most_parameters = 1e15;

// About the number of parameters, without a limit to what it can count.
double rough_size(const ModelConfig& c) {
  const auto x = [](int64_t n) { return static_cast<double>(n); };
  const double heads = x(c.n_heads);
  const double attention =
      c.attn_type == AttentionType::mla
          ? x(c.dim) * (x(c.q_lora_rank) + x(c.kv_lora_rank) + x(c.qk_rope_head_dim) + heads * x(c.v_head_dim)) +
                heads * x(c.q_lora_rank) * x(c.qk_head_dim()) +
                heads * x(c.kv_lora_rank) * (x(c.qk_nope_head_dim) + x(c.v_head_dim))
          : 2 * x(c.dim) * x(c.head_dim()) * (heads + x(c.n_kv_heads));
  const double dense = x(c.prelude_layers + c.coda_layers) * (attention + 3 * x(c.dim) * x(c.dense_dim()));
  const double experts = 3 * x(c.dim) * (x(c.n_experts) * x(c.expert_dim) + x(c.n_shared_experts) * x(c.shared_dim()));
  return x(c.vocab_size) * x(c.dim) + dense + attention + experts + x(c.n_experts) * x(c.dim) +
         x(c.lora_rank) * (2 * x(c.dim) + x(c.max_loop_iters));
}

}  // namespace

std::vector<std::string> problems(const ModelConfig& c) {
  std::vector<std::string> out;
  const auto at_least = [&](const char* field, int64_t value, int64_t low, int64_t high = most_size) {
    if (value < low) out.push_back(fmt::format("model.{} is {}, it must be at least {}", field, value, low));
    if (value > high) {
      out.push_back(fmt::format("model.{} is {}, more than {} is not supported", field, value, with_commas(high)));
    }
  };
  at_least("vocab_size", c.vocab_size, 2);
  at_least("dim", c.dim, 1);
  at_least("n_heads", c.n_heads, 1);
  at_least("n_kv_heads", c.n_kv_heads, 1);
  at_least("max_seq_len", c.max_seq_len, 1);
  at_least("max_loop_iters", c.max_loop_iters, 1);
  at_least("prelude_layers", c.prelude_layers, 0, most_layers);
  at_least("coda_layers", c.coda_layers, 0, most_layers);
  at_least("n_experts", c.n_experts, 1, most_experts);
  at_least("n_shared_experts", c.n_shared_experts, 0, most_experts);
  at_least("n_experts_per_tok", c.n_experts_per_tok, 1);
  at_least("expert_dim", c.expert_dim, 1);
  at_least("lora_rank", c.lora_rank, 1);
  if (c.attn_type == AttentionType::mla) {
    at_least("kv_lora_rank", c.kv_lora_rank, 1);
    at_least("q_lora_rank", c.q_lora_rank, 1);
    at_least("qk_rope_head_dim", c.qk_rope_head_dim, 2);
    at_least("qk_nope_head_dim", c.qk_nope_head_dim, 1);
    at_least("v_head_dim", c.v_head_dim, 1);
    if (c.qk_rope_head_dim % 2 != 0) {
      out.push_back(
          fmt::format("model.qk_rope_head_dim is {}, it must be even: rotary rotates pairs", c.qk_rope_head_dim));
    }
  } else if (c.n_heads > 0 && c.dim > 0) {
    if (c.dim % c.n_heads != 0) {
      out.push_back(fmt::format("model.n_heads {} does not divide model.dim {}", c.n_heads, c.dim));
    } else if (c.head_dim() % 2 != 0) {
      out.push_back(
          fmt::format("model.dim / model.n_heads is {}, it must be even: rotary rotates pairs", c.head_dim()));
    }
    if (c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads != 0) {
      out.push_back(fmt::format("model.n_kv_heads {} does not divide model.n_heads {}", c.n_kv_heads, c.n_heads));
    }
  }
  // The reference builds a rotary table for dim / n_heads with either attention, and needs it to divide.
  if (c.attn_type == AttentionType::mla && c.n_heads > 0 && c.dim > 0 && c.dim % c.n_heads != 0) {
    out.push_back(fmt::format("model.n_heads {} does not divide model.dim {}", c.n_heads, c.dim));
  }
  if (c.n_experts_per_tok > c.n_experts && c.n_experts > 0) {
    out.push_back(
        fmt::format("model.n_experts_per_tok is {}, more than model.n_experts {}", c.n_experts_per_tok, c.n_experts));
  }
  if (!(c.act_threshold > 0 && c.act_threshold <= 1)) {
    out.push_back(fmt::format("model.act_threshold is {}, it must be above 0 and at most 1", c.act_threshold));
  }
  if (!(c.rope_theta >= 1 && std::isfinite(c.rope_theta))) {
    out.push_back(fmt::format("model.rope_theta is {}, it must be a finite number of at least 1", c.rope_theta));
  }
  if (c.dropout != 0) out.push_back(fmt::format("model.dropout is {}, only 0 is supported", c.dropout));
  if (out.empty() && rough_size(c) > most_parameters) {
    out.push_back(fmt::format("the model would have about {:.1e} parameters, more than {:.0e} are not supported",
                              rough_size(c), most_parameters));
  }
  return out;
}

int64_t ParameterSpec::numel() const {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return n;
}

int64_t unit_count(const ModelConfig& c) { return 2 + c.prelude_layers + c.coda_layers; }

std::string unit_name(const ModelConfig& c, int64_t unit) {
  if (unit == 0) return "embedding";
  if (unit <= c.prelude_layers) return fmt::format("prelude.{}", unit - 1);
  if (unit == c.prelude_layers + 1) return "recurrent";
  return fmt::format("coda.{}", unit - c.prelude_layers - 2);
}

namespace {

class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : c_(config) {}

  void add(std::string name, std::vector<int64_t> shape) { specs.push_back({std::move(name), std::move(shape), unit}); }

  void feed_forward(const std::string& prefix, int64_t width) {
    add(prefix + "gate.weight", {width, c_.dim});
    add(prefix + "up.weight", {width, c_.dim});
    add(prefix + "down.weight", {c_.dim, width});
  }

  void block(const std::string& prefix, bool moe) {
    add(prefix + "attn_norm.weight", {c_.dim});
    add(prefix + "ffn_norm.weight", {c_.dim});
    const std::string attn = prefix + "attn.";
    if (c_.attn_type == AttentionType::mla) {
      add(attn + "q_down.weight", {c_.q_lora_rank, c_.dim});
      add(attn + "q_norm.weight", {c_.q_lora_rank});
      add(attn + "q_up_nope.weight", {c_.n_heads * c_.qk_nope_head_dim, c_.q_lora_rank});
      add(attn + "q_up_rope.weight", {c_.n_heads * c_.qk_rope_head_dim, c_.q_lora_rank});
      add(attn + "kv_down.weight", {c_.kv_lora_rank + c_.qk_rope_head_dim, c_.dim});
      add(attn + "kv_norm.weight", {c_.kv_lora_rank});
      add(attn + "kv_up.weight", {c_.n_heads * (c_.qk_nope_head_dim + c_.v_head_dim), c_.kv_lora_rank});
      add(attn + "wo.weight", {c_.dim, c_.n_heads * c_.v_head_dim});
    } else {
      const int64_t kv_width = c_.n_kv_heads * c_.head_dim();
      add(attn + "wq.weight", {c_.n_heads * c_.head_dim(), c_.dim});
      add(attn + "wk.weight", {kv_width, c_.dim});
      add(attn + "wv.weight", {kv_width, c_.dim});
      add(attn + "wo.weight", {c_.dim, c_.n_heads * c_.head_dim()});
    }
    if (!moe) {
      feed_forward(prefix + "ffn.", c_.dense_dim());
      return;
    }
    add(prefix + "ffn.router.weight", {c_.n_experts, c_.dim});
    for (int64_t e = 0; e < c_.n_experts; ++e) {
      feed_forward(fmt::format("{}ffn.routed_experts.{}.", prefix, e), c_.expert_dim);
    }
    for (int64_t e = 0; e < c_.n_shared_experts; ++e) {
      feed_forward(fmt::format("{}ffn.shared_experts.{}.", prefix, e), c_.shared_dim());
    }
  }

  std::vector<ParameterSpec> specs;
  int64_t unit = 0;

 private:
  const ModelConfig& c_;
};

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& c) {
  SpecList list(c);
  list.add("embed.weight", {c.vocab_size, c.dim});
  for (int64_t i = 0; i < c.prelude_layers; ++i) {
    ++list.unit;
    list.block(fmt::format("prelude.{}.", i), false);
  }
  ++list.unit;
  list.block("recurrent.block.", true);
  list.add("recurrent.injection.log_A", {c.dim});
  list.add("recurrent.injection.log_dt", {1});
  list.add("recurrent.injection.B", {c.dim});
  list.add("recurrent.act.halt.weight", {1, c.dim});
  list.add("recurrent.act.halt.bias", {1});
  list.add("recurrent.lora.B", {c.lora_rank, c.dim});
  list.add("recurrent.lora.down.weight", {c.lora_rank, c.dim});
  list.add("recurrent.lora.scale.weight", {c.max_loop_iters, c.lora_rank});
  list.add("recurrent.norm.weight", {c.dim});
  for (int64_t i = 0; i < c.coda_layers; ++i) {
    ++list.unit;
    list.block(fmt::format("coda.{}.", i), false);
  }
  list.unit = 0;
  list.add("norm.weight", {c.dim});
  return std::move(list.specs);
}

std::vector<ParameterSpec> buffer_specs(const ModelConfig& c) {
  return {{"recurrent.block.ffn.router_bias", {c.n_experts}, c.prelude_layers + 1}};
}

int64_t parameter_count(const ModelConfig& c) {
  int64_t n = 0;
  for (const auto& s : parameter_specs(c)) n += s.numel();
  return n;
}

}  // namespace mythos
