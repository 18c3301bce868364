#include "infer/generate_speed.h"

#include "base/error.h"
#include "base/random.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

GenerateSpeed decode(Model& model, std::span<const int64_t> prompt, int64_t new_tokens, int64_t n_loops) {
  GenerateSpeed speed;
  KvCache cache;
  at::Tensor next = at::empty({1, std::ssize(prompt)}, at::kLong);
  std::copy(prompt.begin(), prompt.end(), next.mutable_data_ptr<int64_t>());
  for (int64_t made = 0; made < new_tokens; ++made) {
    const auto begin = Clock::now();
    const at::Tensor h = model.hidden(next, {.n_loops = n_loops, .cache = &cache});
    const at::Tensor logits = model.logits(h.select(1, h.size(1) - 1));
    next = logits.argmax(-1, true);
    speed.ids.push_back(next.item<int64_t>());
    (made == 0 ? speed.prefill_seconds : speed.token_seconds.emplace_back()) = seconds_since(begin);
    speed.top_logits.push_back(logits[0][speed.ids.back()].item<double>());
  }
  return speed;
}

}  // namespace

double GenerateSpeed::tokens_per_second() const {
  const double seconds = std::accumulate(token_seconds.begin(), token_seconds.end(), 0.0);
  return seconds > 0 ? static_cast<double>(token_seconds.size()) / seconds : 0;
}

std::vector<int64_t> random_prompt(int64_t tokens, int64_t vocabulary, uint64_t seed) {
  Random random(derive_seed(seed, 0, "prompt"));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    // Zipf's law nearly: the logarithm of the rank is uniform. The ranks are spread over the vocabulary.
    const auto rank = static_cast<int64_t>(std::pow(static_cast<double>(vocabulary), random.uniform())) - 1;
    const uint64_t id = mix64(static_cast<uint64_t>(rank)) % static_cast<uint64_t>(vocabulary);
    ids.push_back(static_cast<int64_t>(id));
  }
  return ids;
}

GenerateSpeed measure_generate(Model& model, std::span<const int64_t> prompt, int64_t new_tokens, int64_t n_loops) {
  if (prompt.empty()) throw usage_error("the prompt has no token, at least 1 is needed");
  if (new_tokens < 2) {
    throw usage_error(
        fmt::format("{} new tokens asked, at least 2 are needed: the first belongs to the prompt", new_tokens));
  }
  const int64_t most = model.config().max_seq_len;
  // The last new token is never fed back, so it needs no position.
  if (std::ssize(prompt) > most || new_tokens > most + 1 - std::ssize(prompt)) {
    throw usage_error(fmt::format("a prompt of {} tokens and {} new ones exceed the model's {} positions "
                                  "(model.max_seq_len)",
                                  prompt.size(), new_tokens, most),
                      "shorten the prompt, or ask for fewer new ones");
  }
  const at::NoGradGuard no_grad;
  decode(model, prompt, 2, n_loops);
  return decode(model, prompt, new_tokens, n_loops);
}

}  // namespace mythos
