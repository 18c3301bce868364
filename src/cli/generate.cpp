#include "infer/generate.h"

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line_editor.h"
#include "infer/checkpoint_io.h"
#include "infer/prompts.h"

namespace mythos::cli {
namespace {

struct Options {
  std::filesystem::path checkpoint, prompts_file;
  std::string tokenizer, dtype = "float32";
  std::vector<std::string> prompts;
  GenerateOptions generate;
  int64_t threads = 0;
  bool json = false;
};

Json to_json(const std::string& prompt, const Generation& g) {
  const double rate = g.seconds > 0 ? static_cast<double>(g.ids.size()) / g.seconds : 0;
  Json json = {{"prompt", prompt},
               {"text", g.text},
               {"ids", g.ids},
               {"prompt_tokens", g.prompt_tokens},
               {"ended", g.ended},
               {"stopped_by", g.stopped_by.empty() ? Json() : Json(g.stopped_by)},
               {"mean_loops", g.mean_loops},
               {"prompt_seconds", g.prompt_seconds},
               {"tokens_per_s", rate}};
  for (const TopLogits& top : g.top_logits) {
    json["top_logits"].push_back({{"ids", top.ids}, {"logits", top.logits}});
  }
  return json;
}

void say_speed(const Generation& g, bool adaptive) {
  const double rate = g.seconds > 0 ? static_cast<double>(g.ids.size()) / g.seconds : 0;
  log::info("{} tokens in {:.2f} s after a prompt of {} in {:.2f} s: {:.1f} tokens/s{}{}", g.ids.size(), g.seconds,
            g.prompt_tokens, g.prompt_seconds, rate,
            adaptive ? fmt::format(", {:.2f} loops a token", g.mean_loops) : "",
            g.ended                 ? ", ended by end of text"
            : !g.stopped_by.empty() ? ", ended by a stop string"
                                    : "");
}

class Generator {
 public:
  explicit Generator(const Options& o)
      : o_(o),
        loaded_(load_model(o.checkpoint, at::kCPU, dtype_from(o.dtype))),
        tokenizer_(load_tokenizer_of(loaded_.meta, o.tokenizer)) {}

  // One text, shown as it comes.
  void one(const std::string& prompt) {
    const Generation g = generate(*loaded_.model, tokenizer_, prompt, o_.generate, [&](std::string_view piece) {
      if (!o_.json) print(std::string(piece));
    });
    if (o_.json) return print_json(to_json(prompt, g));
    if (!g.text.empty()) print("\n");
    say_speed(g, o_.generate.adaptive);
  }

  // Several at once, each shown with its prompt when all are done: their pieces come mixed.
  void all(const std::vector<std::string>& prompts) {
    const auto made = generate_all(*loaded_.model, tokenizer_, prompts, o_.generate);
    Json list = Json::array();
    for (size_t i = 0; i < made.size(); ++i) {
      if (o_.json) {
        list.push_back(to_json(prompts[i], made[i]));
        continue;
      }
      print(fmt::format("{}> {}\n{}\n", i == 0 ? "" : "\n", prompts[i], made[i].text));
      say_speed(made[i], o_.generate.adaptive);
    }
    if (o_.json) print_json({{"generations", list}});
  }

  // A prompt a line, until the end of input: from a person at a terminal, or from a program. A prompt that cannot be
  // used is said so, and the next one is read.
  void lines() {
    LineEditor editor;
    while (!stop_requested()) {
      const auto line = editor.read("prompt> ");
      if (!line) break;
      if (line->empty()) continue;
      try {
        one(*line);
      } catch (const Error& e) {
        if (e.code() != ExitCode::usage || !editor.is_terminal()) throw;
        log::error("{}", e.line());
      }
    }
  }

 private:
  const Options& o_;
  LoadedModel loaded_;
  Tokenizer tokenizer_;
};

std::vector<std::string> prompts_of(const Options& o) {
  std::vector<std::string> prompts = o.prompts;
  if (o.prompts_file.empty()) return prompts;
  for (const NumberedPrompt& prompt : read_prompts(o.prompts_file)) prompts.push_back(prompt.text);
  return prompts;
}

void run(const Options& o, Result& result) {
  check(o.generate.sampling);
  if (o.generate.top_logits > 0 && !o.json) throw usage_error("--top-logits is part of --json", "add --json");
  set_threads(o.threads);
  const std::vector<std::string> prompts = prompts_of(o);
  Generator generator(o);
  if (prompts.empty()) {
    generator.lines();
  } else if (prompts.size() == 1) {
    generator.one(prompts.front());
  } else {
    generator.all(prompts);
  }
  if (stop_requested()) result.exit_code = 128 + stop_signal();
}

}  // namespace

void add_generate(CLI::App& app, Result& result) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("generate", "Go on with a prompt");
  command->add_option("CHECKPOINT", o->checkpoint, "a checkpoint file, or a run's folder")->required();
  command->add_option("PROMPT", o->prompts,
                      "text to go on with; empty: from the end-of-text token; several: all at once; none: prompts are "
                      "read line by line, with a history on a terminal");
  auto& g = o->generate;
  command->add_option("--prompts", o->prompts_file, "a file with a prompt a line");
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
  command->add_flag("--adaptive", g.adaptive,
                    "a new token's loops end when it halts; faster, and not quite the same (mythos eval --adaptive)");
  command->add_option("--stop", g.stop, "end the text before this; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("TEXT");
  command->add_option("--temperature", g.sampling.temperature, "0: always the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", g.sampling.top_k, "only the k most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", g.sampling.top_p, "only the most likely tokens up to this probability")
      ->capture_default_str();
  command
      ->add_option("--top-logits", g.top_logits,
                   "with --json: of each choice, the so many largest logits and their tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->type_name("N");
  command->add_option("--seed", g.seed, "the same seed gives the same text")->capture_default_str();
  command->add_option("--prompt-chunk", g.prompt_chunk, "tokens of a prompt read at once: more take more memory")
      ->capture_default_str();
  command->add_option("--tokenizer", o->tokenizer, "tokenizer file (default: the one the checkpoint names)");
  command->add_option("--dtype", o->dtype, "of the weights: float32, bfloat16 (half the memory, faster) or float64")
      ->capture_default_str();
  command->add_option("--threads", o->threads, "0: all CPUs this process may use")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Example:\n  mythos generate runs/demo \"The capital of Japan is\" --max-new-tokens 40 --temperature 0");
  command->callback([o, &result] { run(*o, result); });
}

}  // namespace mythos::cli
