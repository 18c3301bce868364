// How good a model is on text it was not trained on.
#pragma once

#include "base/json.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <functional>
#include <string>
#include <vector>

namespace mythos {

struct EvaluationOptions {
  int64_t seq_len = 2048;           ///< tokens per window, as in training
  int64_t batch = 8;                ///< windows at once
  bool document_separator = false;  ///< an end-of-text token after each document, as in training
  int64_t n_loops = 0;              ///< 0: the model's max_loop_iters
  int64_t max_tokens = 0;           ///< stop after about so many; 0: all
};

struct Evaluation {
  int64_t loops = 0;
  int64_t documents = 0;
  int64_t tokens = 0;       ///< predicted
  int64_t bytes = 0;        ///< of the predicted text; with separators, two bytes for each (a blank line)
  double loss = 0;          ///< mean negative log-likelihood of a token, in nats
  double loss_error = 0;    ///< standard error of that mean
  double mean_loops = 0;    ///< loops until a position halts, the last one where it never does
  double never_halted = 0;  ///< share of positions

  [[nodiscard]] double perplexity() const;
  /// All of the likelihood, separators included, over all of the bytes.
  [[nodiscard]] double bits_per_byte() const;
};

/// The documents one after another, cut into windows that overlap by one token, so that every token but the first is
/// predicted exactly once (with separators the stream begins with one, and every token of the text is). Touches no
/// state of training: no gradient, no random number. `progress` (may be empty) gets the share done.
Evaluation evaluate(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                    const EvaluationOptions& options, const std::function<void(double)>& progress = {});

Json to_json(const Evaluation& evaluation);

}  // namespace mythos
