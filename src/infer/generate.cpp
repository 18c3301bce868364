#include "infer/generate.h"

#include "base/error.h"
#include "base/signals.h"
#include "base/units.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace mythos {

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // a continuation byte: look further back
    const size_t length = byte >= 0xF0 && byte < 0xF8 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    return byte < 0xF8 && length > back ? back : 0;
  }
  return 0;
}

TextStream::TextStream(std::vector<std::string> stops, std::function<void(std::string_view)> sink)
    : stops_(std::move(stops)), sink_(std::move(sink)) {}

bool TextStream::add(std::string_view bytes) {
  if (!stopped_by_.empty()) return false;
  pending_ += bytes;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = pending_.find(stop);
    if (at < first) {
      first = at;
      stopped_by_ = stop;
    }
  }
  if (first != std::string::npos) {
    pending_.resize(first);
    finish();
    return false;
  }
  // What may become a stop string waits.
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.ends_with(std::string_view(stop).substr(0, n))) held = n;
    }
  }
  const std::string_view ready = std::string_view(pending_).substr(0, pending_.size() - held);
  flush(ready.size() - incomplete_utf8_tail(ready));
  return true;
}

void TextStream::finish() { flush(pending_.size()); }

void TextStream::flush(size_t n) {
  if (n == 0) return;
  if (sink_) sink_(std::string_view(pending_).substr(0, n));
  pending_.erase(0, n);
}

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

at::Tensor to_ids(std::span<const int32_t> ids, int64_t rows) {
  at::Tensor t = at::empty({rows, std::ssize(ids) / rows}, at::kLong);
  std::copy(ids.begin(), ids.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

TopLogits largest(const float* logits, int64_t n, int64_t wanted) {
  const at::Tensor all = at::empty({n}, at::kFloat);
  std::copy_n(logits, n, all.mutable_data_ptr<float>());
  const auto [values, ids] = all.topk(std::min(wanted, n));
  return {.ids = {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel()},
          .logits = {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()}};
}

// One text in work.
struct Text {
  Generation* result;
  Random random;
  TextStream stream;
  int32_t next = 0;  // the token that is fed in next
};

// The tokens of the vocabulary that may be chosen, and the one that ends a text.
struct Choices {
  int64_t usable;
  std::optional<int32_t> end;
};

class Batch {
 public:
  Batch(Model& model, const Tokenizer& tokenizer, const GenerateOptions& options)
      : model_(model), tokenizer_(tokenizer), options_(options) {
    const int64_t vocabulary = model.config().vocab_size;
    choices_.usable = std::min<int64_t>(vocabulary, tokenizer.n_ids());
    const auto end = tokenizer.end_of_text();
    if (end && *end < vocabulary) choices_.end = end;
  }

  // Reads a prompt and chooses its first token.
  void add(Text text, std::span<const int32_t> ids) {
    const auto begin = Clock::now();
    KvCache cache;
    at::Tensor last;
    for (size_t at = 0; at < ids.size() && !stop_requested();) {
      const size_t n = std::min(ids.size() - at, static_cast<size_t>(options_.prompt_chunk));
      const at::Tensor h = model_.hidden(to_ids(ids.subspan(at, n), 1), {.n_loops = options_.n_loops, .cache = &cache});
      last = h.select(1, h.size(1) - 1);
      at += n;
    }
    text.result->prompt_tokens = std::ssize(ids);
    if (stop_requested()) return;
    const at::Tensor logits = chosen_from(last);
    text.result->prompt_seconds = seconds_since(begin);
    text.result->mean_loops = static_cast<double>(loops());
    if (!accept(text, logits.const_data_ptr<float>())) return;
    texts_.push_back(std::move(text));
    caches_.push_back(std::move(cache));
  }

  // Goes on with all texts until they end.
  void run() {
    const auto begin = Clock::now();
    while (!texts_.empty() && !stop_requested()) {
      std::vector<int32_t> ids;
      for (const Text& text : texts_) ids.push_back(text.next);
      int64_t loops_run = 0;
      const LoopObserver count = [&](const LoopReport& r) { loops_run += r.state.size(0); };
      const int64_t batch = std::ssize(texts_);
      const at::Tensor h = model_.hidden(to_ids(ids, batch), {.n_loops = options_.n_loops,
                                                              .caches = caches_,
                                                              .adaptive = options_.adaptive,
                                                              .observer = options_.adaptive ? &count : nullptr});
      const at::Tensor logits = chosen_from(h.squeeze(1));
      const double mean = options_.adaptive ? static_cast<double>(loops_run) / static_cast<double>(batch)
                                            : static_cast<double>(loops());
      for (size_t i = texts_.size(); i-- > 0;) {
        Generation& g = *texts_[i].result;
        g.seconds = seconds_since(begin);
        const auto made = static_cast<double>(g.ids.size());
        g.mean_loops = (g.mean_loops * made + mean) / (made + 1);
        const bool open = accept(texts_[i], logits.const_data_ptr<float>() + static_cast<int64_t>(i) * choices_.usable);
        if (open) continue;
        texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(i));
        caches_.erase(caches_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (Text& text : texts_) text.stream.finish();  // a stop signal left them open
  }

 private:
  [[nodiscard]] int64_t loops() const {
    return options_.n_loops > 0 ? options_.n_loops : model_.config().max_loop_iters;
  }
  // Logits of [rows, D] for the tokens that may be chosen.
  [[nodiscard]] at::Tensor chosen_from(const at::Tensor& hidden) {
    const SamplingOptions& s = options_.sampling;
    const int64_t most = s.temperature == 0 || s.top_p == 0 ? 1 : s.top_k;
    return model_.likely_logits(hidden, choices_.usable, worth_screening_ ? most : 0)
        .to(at::kCPU)
        .to(at::kFloat)
        .contiguous();
  }
  // Chooses a text's next token; false where it ends with that.
  bool accept(Text& text, const float* logits) const {
    const auto id =
        static_cast<int32_t>(sample({logits, static_cast<size_t>(choices_.usable)}, options_.sampling, text.random));
    Generation& g = *text.result;
    if (options_.top_logits > 0) g.top_logits.push_back(largest(logits, choices_.usable, options_.top_logits));
    if (choices_.end && id == *choices_.end) {
      g.ended = true;
      text.stream.finish();
      return false;
    }
    g.ids.push_back(id);
    text.next = id;
    if (!text.stream.add(tokenizer_.token_bytes(id))) {
      g.stopped_by = text.stream.stopped_by();
      return false;
    }
    if (std::ssize(g.ids) < options_.max_new_tokens) return true;
    text.stream.finish();
    return false;
  }

  Model& model_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  // Making the screen takes as long as a few tokens.
  bool worth_screening_ = options_.screen && options_.max_new_tokens >= 8 && options_.top_logits == 0;
  Choices choices_{};
  std::vector<Text> texts_;
  std::vector<KvCache> caches_;  // of the same texts
};

// Texts at once: with more, the products stop being readings of the weights, and a text would depend on its company.
constexpr size_t most_at_once = 16;

}  // namespace

std::vector<int32_t> prompt_ids(const ModelConfig& model, const Tokenizer& tokenizer, std::string_view prompt,
                                const GenerateOptions& options) {
  check(options.sampling);
  if (options.max_new_tokens < 0) {
    throw usage_error(fmt::format("{} new tokens asked, at least 0 are possible", options.max_new_tokens));
  }
  if (options.n_loops < 0) throw usage_error(fmt::format("{} loops asked, at least 1 is needed", options.n_loops));
  if (options.prompt_chunk < 1) {
    throw usage_error(fmt::format("{} tokens of a prompt at once asked, at least 1 is needed", options.prompt_chunk));
  }
  if (std::find(options.stop.begin(), options.stop.end(), "") != options.stop.end()) {
    throw usage_error("a stop string is empty, every text would end at once", "leave it out");
  }
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  if (ids.empty()) {
    const auto end = tokenizer.end_of_text();
    if (!end || *end >= model.vocab_size) {
      throw usage_error("the prompt is empty, and this model has no end-of-text token to start from", "give some text");
    }
    ids.push_back(*end);
  }
  const auto most = *std::max_element(ids.begin(), ids.end());
  if (most >= model.vocab_size) {
    throw usage_error(fmt::format("the prompt has the token {}, and the model's vocabulary has {}", most,
                                  with_commas(model.vocab_size)),
                      "use the tokenizer the model was trained with");
  }
  const auto tokens = static_cast<int64_t>(ids.size());
  // The last new token is never fed back, so it needs no position.
  if (tokens > model.max_seq_len || options.max_new_tokens > model.max_seq_len + 1 - tokens) {
    throw usage_error(
        fmt::format("a prompt of {} tokens and {} new ones exceed the model's {} positions "
                    "(model.max_seq_len)",
                    tokens, options.max_new_tokens, model.max_seq_len),
        tokens > model.max_seq_len ? "shorten the prompt" : "shorten the prompt, or ask for fewer new ones");
  }
  return ids;
}

Generation generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text) {
  return std::move(generate_all(model, tokenizer, {std::string(prompt)}, options, [&](size_t, std::string_view piece) {
                     if (on_text) on_text(piece);
                   }).front());
}

std::vector<Generation> generate_all(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                                     const GenerateOptions& options,
                                     const std::function<void(size_t, std::string_view)>& on_text) {
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& prompt : prompts) ids.push_back(prompt_ids(model.config(), tokenizer, prompt, options));
  std::vector<Generation> results(prompts.size());
  for (size_t i = 0; i < ids.size(); ++i) results[i].prompt_tokens = std::ssize(ids[i]);
  if (options.max_new_tokens == 0) return results;
  const at::NoGradGuard no_grad;
  for (size_t first = 0; first < prompts.size() && !stop_requested(); first += most_at_once) {
    Batch batch(model, tokenizer, options);
    for (size_t i = first; i < std::min(prompts.size(), first + most_at_once); ++i) {
      Generation& result = results[i];
      const auto on_piece = [&result, &on_text, i](std::string_view piece) {
        result.text += piece;
        if (on_text) on_text(i, piece);
      };
      batch.add({&result, Random(derive_seed(options.seed, i, "sampling")), TextStream(options.stop, on_piece)},
                ids[i]);
    }
    batch.run();
  }
  return results;
}

}  // namespace mythos
