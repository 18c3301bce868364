// What a model or a configuration amounts to, before anything is allocated: for programs (JSON) and for people (text).
#pragma once

#include "base/json.h"
#include "config/batch_plan.h"
#include "config/run_config.h"
#include "model/flops.h"

#include <cstdint>
#include <span>
#include <string>

namespace mythos {

/// {embedding, prelude, recurrent {attention, routed_experts, shared_experts, other}, coda, final_norm}
Json to_json(const ParametersByPart& parameters);
/// {head, dense_blocks, loops, attention, forward, train}
Json to_json(const FlopsPerToken& flops);

/// `checkpoint_bytes`: size of one training checkpoint file (weights and both moments).
/// Keys: parameters, active_parameters, train_flops_per_token, checkpoint_bytes, seq_len, loops (a number, or the list
/// of choices), parameters_by_part, flops_per_token, model (all fields).
Json inspect_model(const ModelConfig& model, int64_t seq_len, std::span<const int64_t> loops, int64_t checkpoint_bytes);

/// inspect_model for the configuration, and: micro_batch (null for "auto"), grad_accum, global_batch_tokens, steps
/// (null where the batch is not settled or no length is given), tokens, train_flops, lr {peak, floor, warmup_steps,
/// schedule}, checkpoints {every, keep_last, disk_needed_bytes}. `ranks`: devices that share a step.
Json inspect_config(const RunConfig& config, int64_t checkpoint_bytes, int64_t ranks = 1);

/// The same for people, with units. `title`: what is shown, for the first line.
std::string inspect_model_text(const std::string& title, const ModelConfig& model, int64_t seq_len,
                               std::span<const int64_t> loops, int64_t checkpoint_bytes);
std::string inspect_config_text(const std::string& title, const RunConfig& config, int64_t checkpoint_bytes,
                                int64_t ranks = 1);

/// Room that a window of checkpoints needs: keep_last and the one being written. Milestones (keep_every) come on top.
int64_t checkpoint_window_bytes(const CheckpointSection& checkpoint, int64_t checkpoint_bytes);

}  // namespace mythos
