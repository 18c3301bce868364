#include "infer/adaptive_check.h"

#include "base/error.h"
#include "infer/clustered.h"

#include <chrono>

namespace mythos {
namespace {

// A window's first tokens are read at once with all loops, like a prompt; the others one by one.
constexpr int64_t prompt = 16, most_after = 112, least_after = 8;

struct Pass {
  double loss = 0, seconds = 0;
  int64_t loops = 0;
};

Pass read(Model& model, std::span<const int32_t> window, int64_t n_loops, bool adaptive) {
  using Clock = std::chrono::steady_clock;
  Pass pass;
  KvCache cache;
  const LoopObserver count = [&](const LoopReport&) { ++pass.loops; };
  at::Tensor ids = at::empty({1, std::ssize(window)}, at::kLong);
  std::copy(window.begin(), window.end(), ids.mutable_data_ptr<int64_t>());
  ids = ids.to(model.parameters().device());
  (void)model.hidden(ids.narrow(1, 0, prompt), {.n_loops = n_loops, .cache = &cache});
  const auto begin = Clock::now();
  for (int64_t i = prompt; i + 1 < ids.size(1); ++i) {
    const at::Tensor h = model.hidden(
        ids.narrow(1, i, 1),
        {.n_loops = n_loops, .cache = &cache, .adaptive = adaptive, .observer = adaptive ? &count : nullptr});
    const at::Tensor logits = model.logits(h.select(1, 0));
    pass.loss -= logits.to(at::kFloat).log_softmax(-1)[0][ids[0][i + 1].item<int64_t>()].item<double>();
  }
  pass.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return pass;
}

}  // namespace

AdaptiveCheck check_adaptive(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                             int64_t n_loops, int64_t max_tokens, const std::function<void(double)>& progress) {
  const at::NoGradGuard no_grad;
  std::vector<int32_t> ids;
  for (const std::string& document : documents) {
    tokenizer.encode(document, ids);
    if (std::ssize(ids) > max_tokens + 2 * (prompt + most_after)) break;
  }
  const int64_t length = std::min<int64_t>({prompt + most_after + 1, model.config().max_seq_len, std::ssize(ids)});
  const int64_t after = length - prompt - 1;
  if (after < least_after) {
    throw usage_error(fmt::format("adaptive loops are compared on windows of at least {} tokens, the text has {}",
                                  prompt + least_after + 1, ids.size()),
                      "give more text, or leave out --adaptive");
  }
  const int64_t windows = std::clamp<int64_t>((max_tokens + after - 1) / after, 1, std::ssize(ids) / length);
  AdaptiveCheck result;
  result.loops = n_loops > 0 ? n_loops : model.config().max_loop_iters;
  Pass all, ending;
  std::vector<double> differences, sizes;
  for (int64_t w = 0; w < windows; ++w) {
    const auto window =
        std::span<const int32_t>(ids).subspan(static_cast<size_t>(w * length), static_cast<size_t>(length));
    const Pass a = read(model, window, n_loops, false), b = read(model, window, n_loops, true);
    all.loss += a.loss, all.seconds += a.seconds;
    ending.loss += b.loss, ending.seconds += b.seconds, ending.loops += b.loops;
    differences.push_back(b.loss - a.loss);
    sizes.push_back(static_cast<double>(after));
    if (progress) progress(static_cast<double>(w + 1) / static_cast<double>(windows));
  }
  result.tokens = windows * after;
  const auto n = static_cast<double>(result.tokens);
  result.loss = all.loss / n;
  result.adaptive_loss = ending.loss / n;
  result.difference = result.adaptive_loss - result.loss;
  result.error = ratio_error(differences, sizes);
  result.mean_loops = static_cast<double>(ending.loops) / n;
  result.tokens_per_s = n / all.seconds;
  result.adaptive_tokens_per_s = n / ending.seconds;
  return result;
}

Json to_json(const AdaptiveCheck& c) {
  return {{"loops", c.loops},
          {"tokens", c.tokens},
          {"loss", c.loss},
          {"adaptive_loss", c.adaptive_loss},
          {"difference", c.difference},
          {"difference_standard_error", c.error ? Json(*c.error) : Json()},
          {"mean_loops", c.mean_loops},
          {"tokens_per_s", c.tokens_per_s},
          {"adaptive_tokens_per_s", c.adaptive_tokens_per_s}};
}

}  // namespace mythos
