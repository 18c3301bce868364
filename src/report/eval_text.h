// An evaluation as a person reads it in a terminal: sections of lines, in the order in which they become known.
#pragma once

#include "infer/eval_report.h"

#include <string>

namespace mythos {

/// What the checkpoint is, and rho(A) with its histogram.
std::string checkpoint_text(const EvalReport& report);
/// Held-out figures, halting, the table by loop count and that of the experts. Only with report.sweep.
std::string sweep_text(const EvalReport& report);
std::string task_text(const ChoiceResult& task);
std::string adaptive_text(const AdaptiveCheck& check);
std::string sample_text(const EvalReport::Sample& sample);

/// "12.34 +- 0.05", or the value alone where there is no error
std::string with_error(double value, const std::optional<double>& error, int decimals);

}  // namespace mythos
