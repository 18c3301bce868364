#include "train/samples.h"

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/signals.h"
#include "infer/generate.h"
#include "model/model.h"

namespace mythos {

Json write_samples(Model& model, const Run& run, int64_t step) {
  const RunConfig& config = run.config;
  Json samples = Json::array();
  for (size_t i = 0; i < config.log.prompts.size() && !stop_requested(); ++i) {
    const auto& prompt = config.log.prompts[i];
    GenerateOptions options;
    options.max_new_tokens = config.log.sample_tokens;
    options.n_loops = run.loops.back();
    options.seed =
        derive_seed(static_cast<uint64_t>(config.train.seed), static_cast<uint64_t>(step), fmt::format("sample {}", i));
    std::string text;
    try {
      generate(model, *run.tokenizer, prompt, options, [&text](std::string_view piece) { text += piece; });
    } catch (const Error& e) {
      log::warn("no sample at step {}: {}", step, e.line());
      continue;
    }
    for (char& c : text) {
      if (c == '\n' || c == '\r') c = ' ';
    }
    log::info("sample at step {}: {}|{}", step, prompt, text);
    samples.push_back({{"prompt", prompt}, {"text", text}});
  }
  return samples;
}

}  // namespace mythos
