#include "infer/generate.h"

#include "base/error.h"
#include "base/signals.h"
#include "base/units.h"

#include <algorithm>
#include <chrono>

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

namespace {

// Hands text on in whole characters.
class TextStream {
 public:
  explicit TextStream(const std::function<void(std::string_view)>& sink) : sink_(sink) {}
  void add(std::string_view bytes) {
    pending_ += bytes;
    flush(pending_.size() - incomplete_utf8_tail(pending_));
  }
  void finish() { flush(pending_.size()); }

 private:
  void flush(size_t n) {
    if (n == 0) return;
    if (sink_) sink_(std::string_view(pending_).substr(0, n));
    pending_.erase(0, n);
  }
  const std::function<void(std::string_view)>& sink_;
  std::string pending_;
};

at::Tensor to_ids(const std::vector<int32_t>& ids) {
  at::Tensor t = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

}  // namespace

std::vector<int32_t> prompt_ids(const ModelConfig& model, const Tokenizer& tokenizer, std::string_view prompt,
                                const GenerateOptions& options) {
  check(options.sampling);
  if (options.max_new_tokens < 0) {
    throw usage_error(fmt::format("{} new tokens asked, at least 0 are possible", options.max_new_tokens));
  }
  if (options.n_loops < 0) throw usage_error(fmt::format("{} loops asked, at least 1 is needed", options.n_loops));
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
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  const ModelConfig& config = model.config();
  const std::vector<int32_t> ids = prompt_ids(config, tokenizer, prompt, options);
  const auto end_of_text = tokenizer.end_of_text();
  const bool has_end = end_of_text && *end_of_text < config.vocab_size;
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(ids.size());
  if (options.max_new_tokens == 0) return result;

  const at::NoGradGuard no_grad;
  Random random(derive_seed(options.seed, 0, "sampling"));
  KvCache cache;
  TextStream text(on_text);
  const int64_t usable = std::min<int64_t>(config.vocab_size, tokenizer.n_ids());
  at::Tensor next = to_ids(ids);
  auto begin = Clock::now();
  for (int64_t made = 0; made < options.max_new_tokens && !stop_requested(); ++made) {
    const at::Tensor h = model.hidden(next, {.n_loops = options.n_loops, .cache = &cache});
    const at::Tensor logits =
        model.logits(h.select(1, h.size(1) - 1)).narrow(1, 0, usable).to(at::kCPU).to(at::kFloat).contiguous();
    if (made == 0) {
      result.prompt_seconds = seconds_since(begin);
      begin = Clock::now();
    }
    const auto id = static_cast<int32_t>(
        sample({logits.const_data_ptr<float>(), static_cast<size_t>(usable)}, options.sampling, random));
    if (has_end && id == *end_of_text) {
      result.ended = true;
      break;
    }
    result.ids.push_back(id);
    text.add(tokenizer.token_bytes(id));
    next = to_ids({id});
  }
  text.finish();
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace mythos
