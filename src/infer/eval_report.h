// All that `mythos eval` finds out, for text, JSON and the page.
#pragma once

#include "infer/adaptive_check.h"
#include "infer/choice_scores.h"
#include "infer/evaluation.h"
#include "infer/spectral_radius.h"

#include <string>

namespace mythos {

struct EvalReport {
  struct Sample {
    std::string prompt, text;
  };

  std::string checkpoint;  ///< as it was named
  int64_t step = 0;
  int64_t tokens = 0;  ///< trained on
  int64_t parameters = 0;
  int64_t vocab_size = 0;
  int64_t experts_per_token = 0;
  int64_t trained_loops = 0;
  bool document_separator = false;
  SpectralRadius radius;
  std::optional<LoopSweep> sweep;  ///< none without text
  std::optional<AdaptiveCheck> adaptive;
  std::vector<ChoiceResult> tasks;
  std::vector<Sample> samples;
};

/// Keys of the trained number of loops stand at the top; those of the text begin with `evaluated_`.
Json to_json(const EvalReport& report);

}  // namespace mythos
