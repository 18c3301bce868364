// What it costs and brings that a token's loops end when it halts.
#pragma once

#include "base/json.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

struct AdaptiveCheck {
  int64_t loops = 0;            ///< of the tokens that run them all
  int64_t tokens = 0;           ///< predicted one by one, each way
  double loss = 0;              ///< mean negative log-likelihood with all loops, in nats
  double adaptive_loss = 0;     ///< of the same tokens with loops that end
  double difference = 0;        ///< adaptive_loss - loss
  std::optional<double> error;  ///< standard error of the difference, by window; none for one window
  double mean_loops = 0;        ///< of a token whose loops end
  double tokens_per_s = 0, adaptive_tokens_per_s = 0;
};

/// Reads windows of the documents token by token with a cache, as generating does, with all loops and with
/// ForwardOptions::adaptive, taking turns. `max_tokens`: about so many each way. Throws Error for a text too short for
/// one window. `progress` (may be empty) gets the share done.
AdaptiveCheck check_adaptive(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                             int64_t n_loops, int64_t max_tokens, const std::function<void(double)>& progress = {});

Json to_json(const AdaptiveCheck& check);

}  // namespace mythos
