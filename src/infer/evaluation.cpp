#include "infer/evaluation.h"

#include <cmath>
#include <numbers>

namespace mythos {

double Evaluation::perplexity() const { return std::exp(loss); }

std::optional<double> Evaluation::perplexity_error() const {
  if (!loss_error) return std::nullopt;
  return perplexity() * *loss_error;
}

double Evaluation::bits_per_byte() const {
  return bytes > 0 ? loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

Json to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json to_json(const Evaluation& e) {
  return {{"loops", e.loops},
          {"loss", e.loss},
          {"loss_standard_error", to_json(e.loss_error)},
          {"loss_difference", e.difference},
          {"loss_difference_standard_error", to_json(e.difference_error)},
          {"perplexity", e.perplexity()},
          {"perplexity_standard_error", to_json(e.perplexity_error())},
          {"bits_per_byte", e.bits_per_byte()},
          {"bits_per_byte_standard_error", to_json(e.bits_per_byte_error)},
          {"accuracy", e.accuracy},
          {"accuracy_standard_error", to_json(e.accuracy_error)},
          {"standard_errors_by", e.by_window ? "window" : "document"},
          {"clusters", e.clusters},
          {"documents", e.documents},
          {"tokens", e.tokens},
          {"bytes", e.bytes},
          {"mean_loops", e.mean_loops},
          {"never_halted", e.never_halted}};
}

}  // namespace mythos
