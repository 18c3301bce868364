#include "infer/generate_speed.h"

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/read.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Reads the largest buffer of weights with all threads: what a token's products do, without the products.
class ReadRate {
 public:
  explicit ReadRate(const ParameterStore& store) {
    for (size_t u = 0; u < store.units(); ++u) {
      if (!words_.defined() || store.values(u).nbytes() > words_.nbytes()) words_ = store.values(u);
    }
  }
  void round() {
    const int64_t n = static_cast<int64_t>(words_.nbytes() / sizeof(uint64_t));
    double best = 0;
    const auto* data = static_cast<const uint64_t*>(words_.const_data_ptr());
    for (const int64_t streams : {1, 2, 4}) {
      std::vector<uint64_t> sums(static_cast<size_t>(at::get_num_threads()));
      const auto begin = Clock::now();
      for_row_parts(n, std::ssize(sums), [&](int64_t part, int64_t first, int64_t last) {
        sums[static_cast<size_t>(part)] = cpu::sum_words(data + first, last - first, streams);
      });
      best = std::max(best, static_cast<double>(words_.nbytes()) / seconds_since(begin));
      check_ = check_ + std::accumulate(sums.begin(), sums.end(), uint64_t{0});
    }
    rounds_.push_back(best);
  }
  [[nodiscard]] double typical() const { return rounds_.empty() ? 0 : median(rounds_); }

 private:
  at::Tensor words_;
  std::vector<double> rounds_;
  volatile uint64_t check_ = 0;  // so that nothing is left out
};

constexpr int64_t tokens_between_rounds = 8;

GenerateSpeed decode(Model& model, std::span<const int64_t> prompt, int64_t new_tokens, int64_t n_loops) {
  GenerateSpeed speed;
  KvCache cache;
  at::Tensor next = at::empty({1, std::ssize(prompt)}, at::kLong);
  std::copy(prompt.begin(), prompt.end(), next.mutable_data_ptr<int64_t>());
  ReadRate rate(model.parameters());
  const int64_t vocabulary = model.config().vocab_size;
  double exact = 0;  // logits of all tokens but the first
  for (int64_t made = 0; made < new_tokens; ++made) {
    if (made % tokens_between_rounds == 0 && model.parameters().device().is_cpu()) rate.round();
    const auto begin = Clock::now();
    const at::Tensor h = model.hidden(next, {.n_loops = n_loops, .cache = &cache});
    const at::Tensor logits = model.likely_logits(h.select(1, h.size(1) - 1), vocabulary, 1);
    if (made > 0) exact += static_cast<double>(model.candidates());
    next = logits.argmax(-1, true);
    speed.ids.push_back(next.item<int64_t>());
    (made == 0 ? speed.prefill_seconds : speed.token_seconds.emplace_back()) = seconds_since(begin);
    speed.top_logits.push_back(logits[0][speed.ids.back()].item<double>());
  }
  speed.read_bytes_per_s = rate.typical();
  const auto element = static_cast<double>(c10::elementSize(model.parameters().master_dtype()));
  speed.whole_weight_bytes_per_token = decode_weight_bytes(model.config(), n_loops, element);
  speed.weight_bytes_per_token = speed.whole_weight_bytes_per_token;
  if (model.screens(vocabulary, 1)) {
    // The int8 copy of the head, and the rows whose logits were computed, instead of every row.
    const double left_out = static_cast<double>(vocabulary) - exact / static_cast<double>(new_tokens - 1);
    speed.weight_bytes_per_token += ScreenedHead::bytes_per_token(vocabulary, model.config().dim) -
                                    left_out * static_cast<double>(model.config().dim) * element;
  }
  return speed;
}

}  // namespace

double GenerateSpeed::tokens_per_second() const {
  const double seconds = std::accumulate(token_seconds.begin(), token_seconds.end(), 0.0);
  return seconds > 0 ? static_cast<double>(token_seconds.size()) / seconds : 0;
}

double GenerateSpeed::fraction_of_limit() const {
  return token_seconds.empty() || limit() <= 0 ? 0 : 1 / median(token_seconds) / limit();
}

double decode_weight_bytes(const ModelConfig& config, int64_t n_loops, double element) {
  const double chosen = static_cast<double>(config.n_experts_per_tok) / static_cast<double>(config.n_experts);
  double elements = 0;
  for (const ParameterSpec& p : parameter_specs(config)) {
    const bool looped = p.name.starts_with("recurrent.");
    const bool routed = p.name.find(".routed_experts.") != std::string::npos;
    elements += static_cast<double>(p.numel()) * (looped ? static_cast<double>(n_loops) : 1) * (routed ? chosen : 1);
  }
  return elements * element;
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
