#include "infer/evaluate.h"

#include "base/error.h"
#include "kernels/cross_entropy.h"

#include <cmath>
#include <numbers>

namespace mythos {

double Evaluation::perplexity() const { return std::exp(loss); }
double Evaluation::bits_per_byte() const {
  return bytes > 0 ? loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

namespace {

struct Stream {
  std::vector<int32_t> ids;
  std::vector<int32_t> bytes;  // what each id stands for in the text
};

Stream join(const Tokenizer& tokenizer, const std::vector<std::string>& documents, bool separator) {
  Stream s;
  const auto end = tokenizer.end_of_text();
  if (separator && !end) throw usage_error("document_separator is set, but the tokenizer has no end-of-text token");
  if (separator) s.ids.push_back(*end);
  for (const auto& d : documents) {
    tokenizer.encode(d, s.ids);
    if (separator) s.ids.push_back(*end);
  }
  s.bytes.reserve(s.ids.size());
  for (const int32_t id : s.ids) {
    const bool is_end = separator && id == *end;
    s.bytes.push_back(is_end ? 2 : static_cast<int32_t>(tokenizer.token_bytes(id).size()));
  }
  return s;
}

}  // namespace

Evaluation evaluate(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                    const EvaluationOptions& o, const std::function<void(double)>& progress) {
  const Stream stream = join(tokenizer, documents, o.document_separator);
  int64_t predicted = static_cast<int64_t>(stream.ids.size()) - 1;
  if (predicted < 1) throw usage_error("the text to evaluate on has fewer than two tokens", "give more text");
  if (o.max_tokens > 0) predicted = std::min(predicted, o.max_tokens);
  const int64_t seq_len = std::min(o.seq_len, model.config().max_seq_len);

  const at::NoGradGuard no_grad;
  Evaluation result;
  result.loops = o.n_loops > 0 ? o.n_loops : model.config().max_loop_iters;
  result.documents = static_cast<int64_t>(documents.size());
  double sum = 0, squares = 0, loops_run = 0, never = 0;
  // ACT's state, followed from the outside: a position that got no more weight has halted.
  at::Tensor running, halted_at;
  const double threshold = model.config().act_threshold;
  const LoopObserver observer = [&](const LoopReport& r) {
    if (r.loop == 0) {
      running = at::zeros_like(r.halt_p);
      halted_at = at::zeros_like(r.halt_p);
    }
    const at::Tensor open = halted_at.eq(0);
    running = running + at::where(open, r.halt_p, at::zeros_like(r.halt_p));
    halted_at = at::where(open.logical_and(running.ge(threshold)),
                          at::full_like(halted_at, static_cast<double>(r.loop + 1)), halted_at);
  };

  for (int64_t begin = 0; begin < predicted;) {
    // Full windows go in batches; the last, shorter one alone.
    const int64_t full = std::min(o.batch, (predicted - begin) / seq_len);
    const int64_t rows = std::max<int64_t>(1, full);
    const int64_t length = full > 0 ? seq_len : predicted - begin;
    at::Tensor ids = at::empty({rows, length}, at::kLong);
    at::Tensor targets = at::empty({rows, length}, at::kLong);
    for (int64_t i = 0; i < rows * length; ++i) {
      ids.mutable_data_ptr<int64_t>()[i] = stream.ids[static_cast<size_t>(begin + i)];
      targets.mutable_data_ptr<int64_t>()[i] = stream.ids[static_cast<size_t>(begin + i + 1)];
      result.bytes += stream.bytes[static_cast<size_t>(begin + i + 1)];
    }
    const at::Device device = model.parameters().device();
    const at::Tensor h = model.hidden(ids.to(device), {.n_loops = o.n_loops, .observer = &observer}).flatten(0, 1);
    const at::Tensor wanted = targets.to(device).flatten();
    const int64_t chunk = cross_entropy_chunk_rows(model.config().vocab_size, h.size(0));
    for (int64_t r = 0; r < h.size(0); r += chunk) {
      const int64_t n = std::min(chunk, h.size(0) - r);
      const at::Tensor logits = model.logits(h.narrow(0, r, n)).to(accumulate_type(h.scalar_type()));
      const at::Tensor nll =
          at::cross_entropy_loss(logits, wanted.narrow(0, r, n), {}, at::Reduction::None).to(at::kDouble);
      sum += nll.sum().item<double>();
      squares += nll.square().sum().item<double>();
    }
    const at::Tensor never_here = halted_at.eq(0);
    never += never_here.sum().item<double>();
    loops_run += at::where(never_here, at::full_like(halted_at, static_cast<double>(result.loops)), halted_at)
                     .sum()
                     .item<double>();
    result.tokens += rows * length;
    begin += rows * length;
    if (progress) progress(static_cast<double>(begin) / static_cast<double>(predicted));
  }
  const auto n = static_cast<double>(result.tokens);
  result.loss = sum / n;
  result.loss_error = n > 1 ? std::sqrt(std::max(0.0, squares / n - result.loss * result.loss) / (n - 1)) : 0;
  result.mean_loops = loops_run / n;
  result.never_halted = never / n;
  if (!std::isfinite(result.loss))
    throw failure("the loss on this text is not a number", "the model's weights are damaged");
  return result;
}

Json to_json(const Evaluation& e) {
  return {{"loops", e.loops},
          {"loss", e.loss},
          {"loss_standard_error", e.loss_error},
          {"perplexity", e.perplexity()},
          {"bits_per_byte", e.bits_per_byte()},
          {"documents", e.documents},
          {"tokens", e.tokens},
          {"bytes", e.bytes},
          {"mean_loops", e.mean_loops},
          {"never_halted", e.never_halted}};
}

}  // namespace mythos
