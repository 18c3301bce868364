#include "base/error.h"
#include "base/machine.h"
#include "base/safetensors.h"
#include "base/units.h"
#include "checkpoint/meta.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "infer/generate_speed.h"
#include "model/weights_file.h"
#include "step/gemm_rate.h"

#include <ATen/Parallel.h>

#include <cstring>

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string config, preset = "mythos_300m", dtype = "float32";
  std::vector<std::string> overrides;
  fs::path weights, prompt;
  int64_t vocab = 0, prompt_len = 16, new_tokens = 32, loops = 0, threads = 0;
  uint64_t seed = 0;
  bool json = false;
};

ModelConfig model_config(const Options& o) {
  if (!o.config.empty()) {
    std::vector<std::string> overrides = o.overrides;
    if (o.vocab > 0) overrides.push_back(fmt::format("model.vocab_size={}", o.vocab));
    return load_config(o.config, overrides).model;
  }
  if (!o.overrides.empty())
    throw usage_error("--set changes a configuration", "give one: mythos bench generate CONFIG");
  ModelConfig model = preset(o.preset);
  if (o.vocab > 0) model.vocab_size = o.vocab;
  if (const auto wrong = problems(model); !wrong.empty()) throw usage_error(wrong.front());
  return model;
}

std::vector<int64_t> prompt_of(const fs::path& path) {
  const auto file = SafetensorsFile::open(path);
  const auto& entry = file.at("prompt");
  if (entry.dtype != DType::I64 || entry.shape.size() != 1) {
    throw usage_error(fmt::format("the tensor 'prompt' of {} is not int64 with one dimension", path.string()));
  }
  const auto bytes = file.data(entry);
  std::vector<int64_t> ids(bytes.size() / sizeof(int64_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

void run(const Options& o) {
  set_threads(o.threads);
  const ModelConfig config = model_config(o);
  const auto dtype = dtype_from(o.dtype);
  const std::vector<int64_t> prompt =
      o.prompt.empty() ? random_prompt(o.prompt_len, config.vocab_size, o.seed) : prompt_of(o.prompt);
  const std::unique_ptr<Model> made = inference_model(config, at::kCPU, dtype);
  Model& model = *made;
  if (o.weights.empty()) {
    initialize(model.parameters(), config, o.seed);
  } else {
    load_weights_file(o.weights, model);
  }
  const int64_t loops = o.loops > 0 ? o.loops : config.max_loop_iters;
  const GenerateSpeed speed = measure_generate(model, prompt, o.new_tokens, loops);
  if (o.json) {
    print_json({{"tokens_per_s", speed.tokens_per_second()},
                {"read_bytes_per_s", speed.read_bytes_per_s},
                {"weight_bytes_per_token", speed.weight_bytes_per_token},
                {"read_limit_tokens_per_s", speed.limit()},
                {"fraction_of_limit", speed.fraction_of_limit()},
                {"whole_weight_bytes_per_token", speed.whole_weight_bytes_per_token},
                {"fraction_of_whole_limit", speed.fraction_of_whole_limit()},
                {"prefill_s", speed.prefill_seconds},
                {"peak_rss_bytes", peak_resident_bytes()},
                {"prompt_tokens", prompt.size()},
                {"new_tokens", speed.ids.size()},
                {"loops", loops},
                {"dtype", o.dtype},
                {"token_seconds", speed.token_seconds},
                {"ids", speed.ids},
                {"top_logits", speed.top_logits},
                {"threads", at::get_num_threads()},
                {"device", device_name(at::kCPU)},
                {"libtorch", libtorch_version()},
                {"model", model_to_json(config)}});
    return;
  }
  print(fmt::format("model       {} parameters, {}, {} loops; {} threads on {}\n", with_commas(parameter_count(config)),
                    o.dtype, loops, at::get_num_threads(), device_name(at::kCPU)));
  print(fmt::format("prompt      {} tokens in {:.3f} s: {:.1f} tokens/s\n", prompt.size(), speed.prefill_seconds,
                    static_cast<double>(prompt.size()) / speed.prefill_seconds));
  print(fmt::format("new tokens  {:.1f} tokens/s ({} tokens, best {:.1f} ms, peak memory {})\n",
                    speed.tokens_per_second(), speed.ids.size(),
                    1e3 * *std::min_element(speed.token_seconds.begin(), speed.token_seconds.end()),
                    bytes_text(static_cast<double>(peak_resident_bytes()))));
  print(fmt::format(
      "limit       {:.1f} tokens/s: {} of weights a token at {}/s, what reading them alone reached between the "
      "tokens; the median token is at {:.0f}% of it\n",
      speed.limit(), bytes_text(speed.weight_bytes_per_token), bytes_text(speed.read_bytes_per_s),
      100 * speed.fraction_of_limit()));
  if (speed.whole_weight_bytes_per_token > speed.weight_bytes_per_token) {
    print(fmt::format(
        "            {:.1f} tokens/s if all of the head were read as it is stored, {} a token: {:.0f}% of that\n",
        speed.whole_limit(), bytes_text(speed.whole_weight_bytes_per_token), 100 * speed.fraction_of_whole_limit()));
  }
}

}  // namespace

void add_bench_generate(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  auto* command = bench.add_subcommand("generate", "How fast new tokens come, one text at a time");
  auto* config = command->add_option("CONFIG", o->config, "the model of this configuration");
  command->add_option("--preset", o->preset, "the model of this name")->capture_default_str()->excludes(config);
  add_overrides(*command, o->overrides);
  command->add_option("--vocab", o->vocab, "vocabulary size (default: the model's own)")->check(CLI::PositiveNumber);
  command->add_option("--prompt-len", o->prompt_len, "tokens of a prompt drawn at random")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--new-tokens", o->new_tokens, "tokens to make, end of text or not")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24));
  command->add_option("--loops", o->loops, "times the recurrent block runs (default: the model's max_loop_iters)")
      ->check(CLI::Range(1, 100000));
  command->add_option("--weights", o->weights,
                      "a .safetensors file of fp32 weights by their names (default: fresh ones)");
  command->add_option("--prompt", o->prompt, "a .safetensors file with int64 'prompt' [P] (default: random)");
  command->add_option("--dtype", o->dtype, "float32, bfloat16 or float64")->capture_default_str();
  command->add_option("--seed", o->seed, "of fresh weights and random prompts")->capture_default_str();
  command->add_option("--threads", o->threads, "0: all CPUs this process may use")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos bench generate --preset mythos_300m --vocab 199998 --new-tokens 64");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
