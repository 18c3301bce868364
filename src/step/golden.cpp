#include "step/golden.h"

#include "base/error.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "step/train_step.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace mythos {
namespace {

at::ScalarType scalar_type(const SafetensorsFile& file, const SafetensorsFile::Entry& entry) {
  switch (entry.dtype) {
    case DType::F64:
      return at::kDouble;
    case DType::F32:
      return at::kFloat;
    case DType::I64:
      return at::kLong;
    case DType::I32:
      return at::kInt;
    default:
      throw failure(fmt::format("{}: tensor {} has type {}, not one of a golden file", file.path().string(),
                                shown_name(entry.name), to_string(entry.dtype)));
  }
}

at::Tensor tensor(const SafetensorsFile& file, const std::string& name) {
  const auto& entry = file.at(name);
  at::Tensor out = at::empty(entry.shape, scalar_type(file, entry));
  const auto bytes = file.data(entry);
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(out.mutable_data_ptr()));
  return out;
}

// Largest difference relative to the expected tensor's largest magnitude; NaN if anything is not a number.
double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kCPU).to(at::kDouble);
  const at::Tensor e = expected.to(at::kDouble);
  if (a.sizes() != e.sizes()) return std::numeric_limits<double>::infinity();
  const double scale = e.abs().max().item<double>();
  const double difference = (a - e).abs().max().item<double>();
  return scale > 0 ? difference / scale : difference;
}

ModelConfig config_of(const Json& c) {
  ModelConfig m;
  m.vocab_size = c.at("vocab_size");
  m.dim = c.at("dim");
  m.n_heads = c.at("n_heads");
  m.n_kv_heads = c.at("n_kv_heads");
  m.max_seq_len = c.at("max_seq_len");
  m.max_loop_iters = c.at("max_loop_iters");
  m.prelude_layers = c.at("prelude_layers");
  m.coda_layers = c.at("coda_layers");
  m.attn_type = c.at("attn_type") == "gqa" ? AttentionType::gqa : AttentionType::mla;
  m.kv_lora_rank = c.at("kv_lora_rank");
  m.q_lora_rank = c.at("q_lora_rank");
  m.qk_rope_head_dim = c.at("qk_rope_head_dim");
  m.qk_nope_head_dim = c.at("qk_nope_head_dim");
  m.v_head_dim = c.at("v_head_dim");
  m.n_experts = c.at("n_experts");
  m.n_shared_experts = c.at("n_shared_experts");
  m.n_experts_per_tok = c.at("n_experts_per_tok");
  m.expert_dim = c.at("expert_dim");
  m.act_threshold = c.at("act_threshold");
  m.rope_theta = c.at("rope_theta");
  m.lora_rank = c.at("lora_rank");
  return m;
}

class GoldenCheck {
 public:
  GoldenCheck(const SafetensorsFile& file, const Json& meta, at::Device device, at::ScalarType type,
              const GoldenTolerance& tolerance)
      : file_(file),
        meta_(meta),
        tolerance_(tolerance),
        config_(config_of(meta.at("config"))),
        loops_(meta.at("n_loops")),
        model_(config_, device, type, type, true),
        ids_(tensor(file, "input_ids").to(device)),
        targets_(tensor(file, "targets").to(device)) {}

  std::vector<GoldenFinding> run() {
    const int64_t expected = meta_.at("n_params");
    add("parameters", static_cast<double>(std::abs(parameter_count(config_) - expected)), 0.5);
    load_weights();
    forward();
    greedy();
    gradients(Recompute::none, "");
    gradients(Recompute::loop, " (recomputed)");
    optimizer_steps();
    return std::move(findings_);
  }

 private:
  void add(std::string what, double error, double tolerance) {
    findings_.push_back({std::move(what), error, tolerance});
  }
  void compare(const std::string& what, const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
    add(what, relative_error(actual, expected), tolerance);
  }

  void load_weights() {
    const at::NoGradGuard no_grad;
    auto all = model_.parameters().named_values();
    for (auto& b : model_.named_buffers()) all.push_back(b);
    for (auto& [name, value] : all) value.copy_(tensor(file_, "weight/" + name));
    model_.parameters().refresh_compute();
  }

  void forward() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> states, halts, experts;
    at::Tensor weighted;
    const LoopObserver observer = [&](const LoopReport& r) {
      states.push_back(r.state);
      halts.push_back(r.halt_p);
      experts.push_back(r.experts);
      const at::Tensor part = r.weight.unsqueeze(-1) * r.state;
      weighted = weighted.defined() ? weighted + part : part;
    };
    const at::Tensor h = model_.hidden(ids_, {.n_loops = loops_, .observer = &observer});
    compare("loop_h", at::stack(states), tensor(file_, "loop_h"), tolerance_.one_step);
    compare("loop_halt_p", at::stack(halts), tensor(file_, "loop_halt_p"), tolerance_.one_step);
    compare("loop_experts", at::stack(experts), tensor(file_, "loop_experts"), 0);
    compare("recurrent_out", weighted, tensor(file_, "recurrent_out"), tolerance_.one_step);
    compare("logits", model_.logits(h), tensor(file_, "logits"), tolerance_.one_step);
    std::vector<int64_t> counts(static_cast<size_t>(loops_));
    std::iota(counts.begin(), counts.end(), 1);
    model_.hidden_by_loops(ids_, counts, [&](size_t i, const at::Tensor& hidden) {
      compare(fmt::format("{} loops in one pass", counts[i]), hidden, model_.hidden(ids_, {.n_loops = counts[i]}), 0);
      if (counts[i] == loops_)
        compare("logits in one pass", model_.logits(hidden), tensor(file_, "logits"), tolerance_.one_step);
    });
  }

  void greedy() {
    const at::NoGradGuard no_grad;
    const at::Tensor expected_ids = tensor(file_, "greedy_ids");
    const at::Tensor expected_logits = tensor(file_, "greedy_logits");
    const int64_t made = expected_logits.size(0);
    const int64_t prompt = expected_ids.size(0) - made;
    KvCache cache;
    at::Tensor next = ids_.narrow(0, 0, 1).narrow(1, 0, prompt);
    std::vector<at::Tensor> ids{next.squeeze(0)}, logits;
    for (int64_t i = 0; i < made; ++i) {
      const at::Tensor h = model_.hidden(next, {.n_loops = loops_, .cache = &cache});
      logits.push_back(model_.logits(h.select(1, h.size(1) - 1)).squeeze(0));
      next = logits.back().argmax().view({1, 1});
      ids.push_back(next.squeeze(0));
    }
    compare("greedy_ids", at::cat(ids), expected_ids, 0);
    compare("greedy_logits", at::stack(logits), expected_logits, tolerance_.one_step);
  }

  StepOptions step_options(Recompute recompute) const {
    return {.clip = meta_.at("adamw").at("clip"),
            .n_loops = loops_,
            .recompute = recompute,
            .loss_tokens = static_cast<double>(targets_.numel())};
  }

  AdamWOptions adamw() const {
    const auto& a = meta_.at("adamw");
    return {.beta1 = a.at("beta1"), .beta2 = a.at("beta2"), .eps = a.at("eps"), .weight_decay = a.at("weight_decay")};
  }

  void gradients(Recompute recompute, const std::string& label) {
    AdamW optimizer(model_.parameters(), adamw());
    TrainStep step(model_, optimizer);
    step.begin(step_options(recompute));
    step.micro_step(ids_, targets_);
    for (const auto& [name, gradient] : model_.parameters().named_gradients()) {
      compare("grad/" + name + label, gradient, tensor(file_, "grad/" + name), tolerance_.one_step);
    }
    const StepResult result = step.finish(0.0);
    compare("loss" + label, at::full({1}, result.loss, at::kDouble), tensor(file_, "loss"), tolerance_.one_step);
  }

  void optimizer_steps() {
    load_weights();
    AdamW optimizer(model_.parameters(), adamw());
    TrainStep step(model_, optimizer);
    const auto& lrs = meta_.at("steps_lr");
    for (size_t s = 0; s < lrs.size(); ++s) {
      step.begin(step_options(Recompute::none));
      step.micro_step(ids_, targets_);
      const StepResult result = step.finish(lrs[s]);
      const double loss = meta_.at("steps_loss")[s];
      const double norm = meta_.at("steps_grad_norm")[s];
      add(fmt::format("loss of step {}", s + 1), std::abs(result.loss - loss) / loss, tolerance_.five_steps);
      add(fmt::format("gradient norm of step {}", s + 1), std::abs(result.gradient_norm - norm) / norm,
          tolerance_.five_steps);
    }
    for (const auto& [name, value] : model_.parameters().named_values()) {
      compare("after5/" + name, value, tensor(file_, "after5/" + name), tolerance_.five_steps);
    }
  }

  const SafetensorsFile& file_;
  const Json& meta_;
  GoldenTolerance tolerance_;
  ModelConfig config_;
  int64_t loops_;
  Model model_;
  at::Tensor ids_, targets_;
  std::vector<GoldenFinding> findings_;
};

}  // namespace

GoldenTolerance golden_tolerance(at::ScalarType type) {
  return type == at::kDouble ? GoldenTolerance{1e-6, 1e-6} : GoldenTolerance{1e-4, 1e-3};
}

std::optional<std::vector<GoldenFinding>> check_golden(const std::filesystem::path& path, at::Device device,
                                                       at::ScalarType type, const GoldenTolerance& tolerance) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto found = file.metadata().find("golden");
  if (found == file.metadata().end()) return std::nullopt;
  Json meta;
  try {
    meta = Json::parse(found->second);
    return GoldenCheck(file, meta, device, type, tolerance).run();
  } catch (const Json::exception& e) {
    throw failure(fmt::format("{}: its golden metadata is not what it should be: {}", path.string(), e.what()));
  }
}

}  // namespace mythos
