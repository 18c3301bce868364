// Model states for other programs.
#pragma once

#include "checkpoint/model_state.h"

#include <filesystem>

namespace mythos {

/// The optimizer's settings as a .pt file names them.
struct PtOptimizer {
  double lr = 6e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

/// A .pt file as the reference writes it: step, model (with the rotary tables, and the head sharing the embedding's
/// storage), optimizer if there is one, cfg, vocab_size. torch.load and the reference's own code read it. A parameter
/// that was never updated has no state, as there. Whole or absent; throws Error.
void export_pt(const ModelState& state, const PtOptimizer& optimizer, const std::filesystem::path& path);

/// A checkpoint of this program, or weights alone under the reference's names without the head.
void export_checkpoint(const ModelState& state, const std::filesystem::path& path);
void export_weights(const ModelState& state, const std::filesystem::path& path);
/// Weights as the reference's whole state_dict: head.weight (the embedding once more) and both rotary tables too, for
/// a strict load_state_dict. The model is in the metadata.
void export_state_dict(const ModelState& state, const std::filesystem::path& path);

/// config.json: the fields of the reference's MythosConfig.
void export_config(const ModelConfig& model, const std::filesystem::path& path);

}  // namespace mythos
