#include "plan/inspect.h"

#include "base/units.h"
#include "model/flops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>
#include <vector>

namespace mythos {

namespace {

Json loops_json(std::span<const int64_t> loops) {
  if (loops.size() == 1) return loops[0];
  return std::vector<int64_t>(loops.begin(), loops.end());
}

std::string loops_text(std::span<const int64_t> loops) {
  if (loops.size() == 1) return fmt::format("{} loops", loops[0]);
  return fmt::format("{} loops drawn each step", fmt::join(loops, " or "));
}

Json model_json(const ModelConfig& c) {
  return {{"vocab_size", c.vocab_size},
          {"dim", c.dim},
          {"n_heads", c.n_heads},
          {"n_kv_heads", c.n_kv_heads},
          {"max_seq_len", c.max_seq_len},
          {"max_loop_iters", c.max_loop_iters},
          {"prelude_layers", c.prelude_layers},
          {"coda_layers", c.coda_layers},
          {"attn_type", to_string(c.attn_type)},
          {"kv_lora_rank", c.kv_lora_rank},
          {"q_lora_rank", c.q_lora_rank},
          {"qk_rope_head_dim", c.qk_rope_head_dim},
          {"qk_nope_head_dim", c.qk_nope_head_dim},
          {"v_head_dim", c.v_head_dim},
          {"n_experts", c.n_experts},
          {"n_shared_experts", c.n_shared_experts},
          {"n_experts_per_tok", c.n_experts_per_tok},
          {"expert_dim", c.expert_dim},
          {"act_threshold", c.act_threshold},
          {"rope_theta", c.rope_theta},
          {"lora_rank", c.lora_rank},
          {"max_output_tokens", c.max_output_tokens},
          {"dropout", c.dropout}};
}

// A table of parts: name, number, share of the whole.
std::string parts_table(const std::vector<std::pair<std::string, double>>& parts, double whole, bool exact) {
  std::string out;
  for (const auto& [name, value] : parts) {
    const std::string number = exact ? with_commas(static_cast<int64_t>(value)) : fmt::format("{:.4f} G", value / 1e9);
    out += fmt::format("    {:<22}{:>20}  {:>5.1f}%\n", name, number, whole > 0 ? 100 * value / whole : 0.0);
  }
  return out;
}

// A batch plan where the configuration settles one.
std::optional<BatchPlan> settled_plan(const RunConfig& config, int64_t ranks) {
  if (config.train.micro_batch == 0) return std::nullopt;
  return batch_plan(config.train, config.train.micro_batch, ranks);
}

}  // namespace

int64_t checkpoint_window_bytes(const CheckpointSection& checkpoint, int64_t checkpoint_bytes) {
  return (checkpoint.keep_last + 1) * checkpoint_bytes;
}

Json to_json(const ParametersByPart& p) {
  return {{"embedding", p.embedding},
          {"prelude", p.prelude},
          {"recurrent",
           {{"attention", p.recurrent_attention},
            {"routed_experts", p.recurrent_routed},
            {"shared_experts", p.recurrent_shared},
            {"other", p.recurrent_other}}},
          {"coda", p.coda},
          {"final_norm", p.final_norm}};
}

Json to_json(const FlopsPerToken& f) {
  return {{"head", f.head},           {"dense_blocks", f.dense_blocks}, {"loops", f.loops},
          {"attention", f.attention}, {"forward", f.forward},           {"train", f.train}};
}

Json inspect_model(const ModelConfig& model, int64_t seq_len, std::span<const int64_t> loops,
                   int64_t checkpoint_bytes) {
  const ParametersByPart p = parameters_by_part(model);
  const FlopsPerToken f = flops_per_token(model, seq_len, loops);
  return {{"parameters", p.total()},
          {"active_parameters", p.active},
          {"train_flops_per_token", f.train},
          {"checkpoint_bytes", checkpoint_bytes},
          {"seq_len", seq_len},
          {"loops", loops_json(loops)},
          {"parameters_by_part", to_json(p)},
          {"flops_per_token", to_json(f)},
          {"model", model_json(model)}};
}

Json inspect_config(const RunConfig& config, int64_t checkpoint_bytes, int64_t ranks) {
  const TrainSection& t = config.train;
  Json out = inspect_model(config.model, t.seq_len, t.loops, checkpoint_bytes);
  const auto plan = settled_plan(config, ranks);
  const auto known = [&](int64_t BatchPlan::*field) { return plan ? Json((*plan).*field) : Json(nullptr); };
  const bool length = plan && plan->steps > 0;
  out["micro_batch"] = known(&BatchPlan::micro_batch);
  out["grad_accum"] = known(&BatchPlan::grad_accum);
  out["global_batch_tokens"] = known(&BatchPlan::global_batch_tokens);
  out["steps"] = length ? Json(plan->steps) : t.steps > 0 ? Json(t.steps) : Json(nullptr);
  out["tokens"] = length ? Json(plan->tokens()) : Json(nullptr);
  out["train_flops"] =
      length ? Json(out["train_flops_per_token"].get<double>() * static_cast<double>(plan->tokens())) : Json(nullptr);
  out["lr"] = {{"peak", t.lr},
               {"floor", t.schedule == "constant" ? t.lr : t.lr * t.min_lr_ratio},
               {"warmup_steps", t.warmup_steps},
               {"schedule", t.schedule}};
  out["checkpoints"] = {{"every", config.checkpoint.every},
                        {"keep_last", config.checkpoint.keep_last},
                        {"disk_needed_bytes", checkpoint_window_bytes(config.checkpoint, checkpoint_bytes)}};
  return out;
}

std::string inspect_model_text(const std::string& title, const ModelConfig& model, int64_t seq_len,
                               std::span<const int64_t> loops, int64_t checkpoint_bytes) {
  const ParametersByPart p = parameters_by_part(model);
  const FlopsPerToken f = flops_per_token(model, seq_len, loops);
  const auto n = [](int64_t value) { return static_cast<double>(value); };
  const auto whole = n(p.total());
  std::string out = fmt::format("{}\n", title);
  out += fmt::format(
      "  model         {}, width {}, {} heads, {} + recurrent + {} blocks, {} experts ({} chosen, {} shared), "
      "vocabulary {}\n",
      to_string(model.attn_type), model.dim, model.n_heads, model.prelude_layers, model.coda_layers, model.n_experts,
      model.n_experts_per_tok, model.n_shared_experts, with_commas(model.vocab_size));
  out += fmt::format("  parameters    {} ({:.1f}% met by one token: {})\n", with_commas(p.total()),
                     100 * n(p.active) / whole, with_commas(p.active));
  out += parts_table({{"embedding and head", n(p.embedding)},
                      {"prelude", n(p.prelude)},
                      {"loop: attention", n(p.recurrent_attention)},
                      {"loop: routed experts", n(p.recurrent_routed)},
                      {"loop: shared experts", n(p.recurrent_shared)},
                      {"loop: other", n(p.recurrent_other)},
                      {"coda", n(p.coda)},
                      {"final norm", n(p.final_norm)}},
                     whole, true);
  out += fmt::format("  FLOPs a token {}FLOP forward, {}FLOP to train ({}, sequences of {})\n", si_text(f.forward),
                     si_text(f.train), loops_text(loops), with_commas(seq_len));
  out +=
      parts_table({{"head", f.head}, {"dense blocks", f.dense_blocks}, {"loops", f.loops}, {"attention", f.attention}},
                  f.forward, false);
  out += fmt::format("  checkpoint    {} ({} bytes)\n", bytes_text(n(checkpoint_bytes)), with_commas(checkpoint_bytes));
  return out;
}

std::string inspect_config_text(const std::string& title, const RunConfig& config, int64_t checkpoint_bytes,
                                int64_t ranks) {
  const TrainSection& t = config.train;
  std::string out = inspect_model_text(title, config.model, t.seq_len, t.loops, checkpoint_bytes);
  const auto plan = settled_plan(config, ranks);
  if (!config.vocab_size) {
    out += fmt::format("  vocabulary    {} is the preset's; training takes the tokenizer's\n",
                       with_commas(config.model.vocab_size));
  }
  if (plan) {
    out += fmt::format("  a step        {} tokens: {} micro-batches of {} x {}{}",
                       with_commas(plan->global_batch_tokens), plan->grad_accum, plan->micro_batch,
                       with_commas(t.seq_len), ranks > 1 ? fmt::format(" on each of {} devices", ranks) : "");
    const bool exact = t.global_batch_tokens == 0 || t.global_batch_tokens == plan->global_batch_tokens;
    out += exact ? "\n" : fmt::format(" ({} asked for)\n", with_commas(t.global_batch_tokens));
  } else {
    out += "  a step        micro_batch is \"auto\": settled on the machine that trains\n";
  }
  if (plan && plan->steps > 0) {
    const auto tokens = static_cast<double>(plan->tokens());
    const double train = flops_per_token(config.model, t.seq_len, t.loops).train;
    out += fmt::format("  the run       {} steps, {}tokens, {}FLOP\n", with_commas(plan->steps), si_text(tokens),
                       si_text(tokens * train));
  } else if (t.steps > 0) {
    out += fmt::format("  the run       {} steps\n", with_commas(t.steps));
  }
  if (t.schedule == "constant") {
    out += fmt::format("  learning rate {:g} after {} steps of warm-up\n", t.lr, with_commas(t.warmup_steps));
  } else {
    out += fmt::format("  learning rate {:g} after {} steps of warm-up, then {} to {:g}\n", t.lr,
                       with_commas(t.warmup_steps), t.schedule, t.lr * t.min_lr_ratio);
  }
  const int64_t disk = checkpoint_window_bytes(config.checkpoint, checkpoint_bytes);
  out += fmt::format(
      "  disk          {} for {} checkpoints and the one being written, every {} steps{}\n",
      bytes_text(static_cast<double>(disk)), config.checkpoint.keep_last, with_commas(config.checkpoint.every),
      config.checkpoint.keep_every > 0
          ? fmt::format(", and {} more at every {} steps", bytes_text(static_cast<double>(checkpoint_bytes)),
                        with_commas(config.checkpoint.keep_every))
          : "");
  out += fmt::format("  folders       run {}, checkpoints {}\n", config.run.dir, config.checkpoint.dir);
  return out;
}

}  // namespace mythos
