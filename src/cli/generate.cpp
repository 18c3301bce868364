#include "infer/generate.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "infer/checkpoint_io.h"

namespace mythos::cli {
namespace {

struct Options {
  std::filesystem::path checkpoint;
  std::string tokenizer;
  std::string prompt, dtype = "float32";
  GenerateOptions generate;
  int64_t threads = 0;
  bool json = false;
};

void run(const Options& o, Result& result) {
  check(o.generate.sampling);
  set_threads(o.threads);
  const auto dtype = dtype_from(o.dtype);
  LoadedModel loaded = load_model(o.checkpoint, at::kCPU, dtype);
  const Tokenizer tokenizer = load_tokenizer_of(loaded.meta, o.tokenizer);
  std::string text;
  const Generation g = generate(*loaded.model, tokenizer, o.prompt, o.generate, [&](std::string_view piece) {
    text += piece;
    if (!o.json) print(std::string(piece));
  });
  if (stop_requested()) result.exit_code = 128 + stop_signal();
  const double rate = g.seconds > 0 ? static_cast<double>(g.ids.size()) / g.seconds : 0;
  if (o.json) {
    print_json({{"prompt", o.prompt},
                {"text", text},
                {"ids", g.ids},
                {"prompt_tokens", g.prompt_tokens},
                {"ended", g.ended},
                {"prompt_seconds", g.prompt_seconds},
                {"tokens_per_s", rate}});
    return;
  }
  if (!text.empty()) print("\n");
  log::info("{} tokens in {:.2f} s after a prompt of {} in {:.2f} s: {:.1f} tokens/s{}", g.ids.size(), g.seconds,
            g.prompt_tokens, g.prompt_seconds, rate, g.ended ? ", ended by end of text" : "");
}

}  // namespace

void add_generate(CLI::App& app, Result& result) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("generate", "Go on with a prompt");
  command->add_option("CHECKPOINT", o->checkpoint, "a checkpoint file, or a run's folder")->required();
  command->add_option("PROMPT", o->prompt, "text to go on with; empty: from the end-of-text token")->required();
  auto& g = o->generate;
  command->add_option("--max-new-tokens", g.max_new_tokens, "new tokens at most")->capture_default_str();
  command
      ->add_option_function<int64_t>(
          "--loops",
          [o](const int64_t& n) {
            if (n < 1) throw usage_error(fmt::format("--loops is {}, it must be at least 1", n));
            o->generate.n_loops = n;
          },
          "times the recurrent block runs; may exceed what the model was trained with (default: its own)")
      ->type_name("N");
  command->add_option("--temperature", g.sampling.temperature, "0: always the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", g.sampling.top_k, "only the k most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", g.sampling.top_p, "only the most likely tokens up to this probability")
      ->capture_default_str();
  command->add_option("--seed", g.seed, "the same seed gives the same text")->capture_default_str();
  command->add_option("--tokenizer", o->tokenizer, "tokenizer file (default: the one the checkpoint names)");
  command->add_option("--dtype", o->dtype, "float32, bfloat16 or float64")->capture_default_str();
  command->add_option("--threads", o->threads, "0: all CPUs this process may use")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Example:\n  mythos generate runs/demo \"The capital of Japan is\" --max-new-tokens 40 --temperature 0");
  command->callback([o, &result] { run(*o, result); });
}

}  // namespace mythos::cli
