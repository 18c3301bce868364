// How good a model is on a text, as numbers.
#pragma once

#include "base/json.h"
#include "infer/loop_summary.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace mythos {

/// With one number of loops. Standard errors are by cluster, since tokens of a document are not independent: by
/// document, or by window where there is only one document. They are missing where there is only one of either.
struct Evaluation {
  int64_t loops = 0;
  int64_t documents = 0;  ///< of which a token was predicted
  int64_t tokens = 0;     ///< predicted
  int64_t bytes = 0;      ///< of the predicted text; with separators, two bytes for each (a blank line)
  int64_t clusters = 0;
  bool by_window = false;  ///< clusters are windows, else documents
  double loss = 0;         ///< mean negative log-likelihood of a token, in nats
  std::optional<double> loss_error;
  std::optional<double> bits_per_byte_error;  ///< tokens and bytes of a document vary, and that is in it
  double accuracy = 0;                        ///< share of tokens that the model held for the most likely
  std::optional<double> accuracy_error;
  /// Of the loss from the one with the loops it is compared to. Its error is that of the difference: both see the same
  /// text, so it is much smaller than theirs.
  double difference = 0;
  std::optional<double> difference_error;
  double mean_loops = 0;    ///< loops until a position halts, the last one where it never does
  double never_halted = 0;  ///< share of positions

  [[nodiscard]] double perplexity() const;
  /// By the delta method: perplexity times the loss's error.
  [[nodiscard]] std::optional<double> perplexity_error() const;
  /// All of the likelihood, separators included, over all of the bytes.
  [[nodiscard]] double bits_per_byte() const;
};

/// The same text with several numbers of loops.
struct LoopSweep {
  Evaluation trained;                ///< with the loops the others are compared to
  std::vector<Evaluation> by_loops;  ///< with those that were asked, rising
  LoopSummary loops;                 ///< of a pass with the most of them
};

Json to_json(const Evaluation& evaluation);
/// null where there is none
Json to_json(const std::optional<double>& value);

}  // namespace mythos
