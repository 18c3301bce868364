// What a model says of tokens that are known.
#pragma once

#include "model/model.h"

namespace mythos {

struct TokenScores {
  at::Tensor nll;  ///< negative log-likelihood in nats, double [N], on the CPU
  at::Tensor hit;  ///< whether the most likely token is the right one, bool [N], on the CPU
};

/// hidden: [N, D] of Model::hidden, targets: int64 [N]. A few hundred positions' logits exist at once.
TokenScores score_tokens(const Model& model, const at::Tensor& hidden, const at::Tensor& targets);

}  // namespace mythos
