// Scoring multiple-choice tasks by likelihood.
#pragma once

#include "base/json.h"
#include "infer/choice_task.h"

#include <optional>
#include <span>

namespace mythos {

class Model;

/// Accuracies by the choice whose log-likelihood is the highest, under the names lm-evaluation-harness gives them.
struct ChoiceAccuracy {
  int64_t loops = 0;
  double acc = 0;        ///< of the plain sum over its tokens
  double acc_norm = 0;   ///< of the sum divided by the choice's number of characters
  double acc_bytes = 0;  ///< of the sum divided by its number of bytes: acc_norm where all of it is ASCII
  std::optional<double> acc_error, acc_norm_error, acc_bytes_error;  ///< standard errors over questions
};

struct ChoiceResult {
  std::string file;
  int64_t questions = 0;
  int64_t cut = 0;                       ///< questions of which the beginning did not fit
  double chance = 0;                     ///< the accuracy of guessing
  ChoiceAccuracy trained;                ///< with the loops of training
  std::vector<ChoiceAccuracy> by_loops;  ///< with those that were asked, rising
};

/// Log-likelihood in nats of every choice of every question with each of `counts` loops (rising): [count][question]
/// [choice]. Rows of like lengths are computed together, padded at the right, where no position that counts sees them.
/// `batch_tokens`: positions at once. `progress` (may be empty) gets the share done. Throws Error for a likelihood that
/// is not a number.
using Likelihoods = std::vector<std::vector<double>>;
std::vector<Likelihoods> choice_likelihoods(Model& model, const ChoiceTask& task, std::span<const int64_t> counts,
                                            int64_t batch_tokens, const std::function<void(double)>& progress = {});

/// The accuracies that follow from one count's likelihoods; of equal ones the first choice counts.
ChoiceAccuracy choice_accuracy(const ChoiceTask& task, const Likelihoods& likelihoods, int64_t loops);

/// Both, for `counts` (in any order) and for the loops of training.
ChoiceResult score_choices(Model& model, const ChoiceTask& task, std::span<const int64_t> counts, int64_t trained_loops,
                           int64_t batch_tokens, const std::function<void(double)>& progress = {});

Json to_json(const ChoiceResult& result);

}  // namespace mythos
