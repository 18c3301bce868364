// Measuring how good a model is on text it was not trained on.
#pragma once

#include "infer/evaluation.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// More loops than anyone asks for.
inline constexpr int64_t most_loops = 4096;

struct EvaluationOptions {
  int64_t seq_len = 2048;           ///< tokens per window, as in training
  int64_t batch = 8;                ///< windows at once
  bool document_separator = false;  ///< an end-of-text token after each document, as in training
  int64_t n_loops = 0;              ///< the loops to compare with; 0: the model's max_loop_iters
  int64_t max_tokens = 0;           ///< stop after about so many; 0: all
};

/// The documents one after another, cut into windows that overlap by one token, so that every token but the first is
/// predicted exactly once (with separators the stream begins with one, and every token of the text is). Measures all of
/// `counts` (each from 1 to most_loops; in any order) and `options.n_loops` in one pass over the windows: see
/// Model::hidden_by_loops. Touches no state of training: no gradient, no random number. `progress` (may be empty) gets
/// the share done. Throws Error for a text of fewer than two tokens, tokens outside the model's vocabulary, and a loss
/// that is not a number.
LoopSweep sweep_loops(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                      std::span<const int64_t> counts, const EvaluationOptions& options,
                      const std::function<void(double)>& progress = {});

/// The same with `options.n_loops` alone.
Evaluation evaluate(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                    const EvaluationOptions& options, const std::function<void(double)>& progress = {});

/// `counts` and `one`, rising, each once.
std::vector<int64_t> rising(std::span<const int64_t> counts, int64_t one);

}  // namespace mythos
