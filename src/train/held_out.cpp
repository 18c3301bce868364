#include "train/held_out.h"

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/units.h"

namespace mythos {
namespace {

// Thrown out of an evaluation when a stop is asked for.
struct StopAsked {};

}  // namespace

std::optional<Evaluation> measure_held_out(Model& model, Run& run, int64_t step) {
  if (run.n_held_out() == 0 || stop_requested()) return std::nullopt;
  std::optional<Evaluation> measured;
  try {
    const EvaluationOptions options{.seq_len = run.config.train.seq_len,
                                    .batch = run.batch.micro_batch,
                                    .document_separator = run.config.data.document_separator,
                                    .n_loops = run.loops.back(),
                                    .max_tokens = 0};
    measured = evaluate(model, *run.tokenizer, run.held_out(), options, [](double share) {
      log::live_line(fmt::format("held-out loss: {:.0f}% done", 100 * share));
      if (stop_requested()) throw StopAsked{};
    });
    log::info("held-out at step {}: loss {:.4f}, perplexity {:.1f}, {:.3f} bits per byte ({} documents, {} bytes)",
              step, measured->loss, measured->perplexity(), measured->bits_per_byte(), with_commas(measured->documents),
              with_commas(measured->bytes));
  } catch (const StopAsked&) {
  } catch (const Error& e) {
    log::warn("no held-out loss at step {}: {}", step, e.line());
  }
  log::live_line("");
  return measured;
}

}  // namespace mythos
