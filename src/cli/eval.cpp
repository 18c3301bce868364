#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "data/documents.h"
#include "infer/checkpoint_io.h"
#include "infer/evaluate.h"
#include "infer/generate.h"
#include "storage/storage.h"

namespace mythos::cli {
namespace {

struct Options {
  std::filesystem::path checkpoint;
  std::string tokenizer, data, text_column = "text", loops, dtype = "float32";
  std::vector<std::string> prompts;
  int64_t documents = 0, max_tokens = 0, threads = 0;
  bool json = false;
};

// What to evaluate on: the source asked for, or what the run held out.
std::vector<std::string> documents_for(const Options& o, const RunConfig& config, const CheckpointMeta& meta,
                                       const Tokenizer& tokenizer) {
  DataOptions data;
  data.storage = std::make_shared<Storage>();
  data.text_column = config.data.text_column;
  data.decode = [tokenizer](std::span<const int32_t> ids) { return tokenizer.decode(ids); };
  if (!o.data.empty()) {
    data.validation_sources = {o.data};
    data.text_column = o.text_column;
    data.validation_documents = o.documents;
    return validation_documents({}, data);
  }
  if (config.data.source.empty() || (config.data.validation_documents == 0 && config.data.validation_source.empty()))
    return {};
  data.storage->pin(commits_of(meta.data));
  data.sources = config.data.source;
  data.weights = config.data.weights;
  data.validation_sources = config.data.validation_source;
  data.validation_documents = config.data.validation_documents;
  auto documents = validation_documents(data.validation_sources.empty() ? open_sources(data) : Sources{}, data);
  if (o.documents > 0 && static_cast<size_t>(o.documents) < documents.size())
    documents.resize(static_cast<size_t>(o.documents));
  return documents;
}

void run(const Options& o) {
  set_threads(o.threads);
  LoadedModel loaded = load_model(o.checkpoint, at::kCPU, dtype_from(o.dtype));
  Model& model = *loaded.model;
  const CheckpointMeta& meta = loaded.meta;
  const RunConfig config = parse_config(meta.config, "the checkpoint's config", "run");
  const Tokenizer tokenizer = load_tokenizer_of(meta, o.tokenizer);
  const auto [radius_max, radius_min] = model.spectral_radius();
  const int64_t own_loops = config.train.loops.back();
  const auto documents = documents_for(o, config, meta, tokenizer);
  std::vector<int64_t> counts = o.loops.empty() ? std::vector<int64_t>{1, 2, 4, 8} : integers(o.loops, "--loops");
  if (o.loops.empty()) counts.insert(counts.end(), {own_loops, 2 * own_loops});
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  if (counts.front() < 1) throw usage_error(fmt::format("--loops names {}, it must be at least 1", counts.front()));
  GenerateOptions generation;
  generation.n_loops = own_loops;
  for (const auto& prompt : o.prompts) prompt_ids(meta.model, tokenizer, prompt, generation);
  Json json = {{"step", meta.step},
               {"tokens", meta.tokens},
               {"parameters", parameter_count(meta.model)},
               {"vocab_size", meta.model.vocab_size},
               {"spectral_radius_max", radius_max},
               {"spectral_radius_min", radius_min},
               {"loss", nullptr},
               {"perplexity", nullptr},
               {"bits_per_byte", nullptr},
               {"by_loops", Json::array()}};
  const bool stable = radius_max <= 0.999 && radius_min >= 0.0001;
  if (!o.json) {
    print(fmt::format("checkpoint   step {}, {} tokens, {} parameters, vocabulary {}\n", with_commas(meta.step),
                      with_commas(meta.tokens), with_commas(parameter_count(meta.model)),
                      with_commas(meta.model.vocab_size)));
    print(fmt::format("rho(A)       max {:.4f}, min {:.4f} ({} 0.0001 to 0.999)\n", radius_max, radius_min,
                      stable ? "OK: within" : "NOT within"));
  }
  if (documents.empty() && !o.json)
    print("held-out     none in this run's configuration; give text with --data SOURCE\n");
  if (!documents.empty()) {
    EvaluationOptions options{.seq_len = config.train.seq_len,
                              .batch = 8,
                              .document_separator = config.data.document_separator,
                              .n_loops = own_loops,
                              .max_tokens = o.max_tokens};
    const auto at_loops = [&](int64_t n) {
      options.n_loops = n;
      const auto e = evaluate(model, tokenizer, documents, options, [n](double share) {
        log::live_line(fmt::format("{} loops: {:.0f}% done", n, 100 * share));
        stop_if_asked("stopped before the evaluation was complete");
      });
      log::live_line("");
      return e;
    };
    const Evaluation own = at_loops(own_loops);
    const Json figures = to_json(own);
    for (const auto& [key, value] : figures.items()) {
      // What is said of the text, not of the training.
      const bool of_text = key == "tokens" || key == "documents" || key == "bytes";
      json[of_text ? "evaluated_" + key : key] = value;
    }
    if (!o.json) {
      print(fmt::format(
          "held-out     loss {:.4f} +- {:.4f}, perplexity {:.2f}, {:.4f} bits per byte\n"
          "             {} documents, {} tokens, {} bytes{}; {} loops\n"
          "halting      {:.2f} loops on average, {:.1f}% of positions never halt\n",
          own.loss, own.loss_error, own.perplexity(), own.bits_per_byte(), with_commas(own.documents),
          with_commas(own.tokens), with_commas(own.bytes), options.document_separator ? " (2 for each separator)" : "",
          own.loops, own.mean_loops, 100 * own.never_halted));
    }
    if (!o.json) print("loops        loss     perplexity  bits per byte\n");
    for (const int64_t n : counts) {
      const Evaluation e = n == own_loops ? own : at_loops(n);
      json["by_loops"].push_back(to_json(e));
      if (!o.json) {
        print(fmt::format("  {:<9}  {:<7.4f}  {:<10.2f}  {:.4f}{}\n", n, e.loss, e.perplexity(), e.bits_per_byte(),
                          n == own_loops ? "  (trained with)" : ""));
      }
    }
  }
  if (!o.prompts.empty()) json["samples"] = Json::array();
  for (const auto& prompt : o.prompts) {
    std::string text;
    generate(model, tokenizer, prompt, generation, [&](std::string_view piece) { text += piece; });
    json["samples"].push_back({{"prompt", prompt}, {"text", text}});
    if (!o.json) print(fmt::format("sample       {}|{}\n", prompt, text));
  }
  if (o.json) print_json(json);
}

}  // namespace

void add_eval(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("eval", "Loss, perplexity and bits per byte, by loop count; rho(A); halting");
  command->add_option("CHECKPOINT", o->checkpoint, "a checkpoint file, or a run's folder")->required();
  command->add_option("--data", o->data,
                      "text to evaluate on: a file, folder or glob (default: what the run held out)");
  command->add_option("--text-column", o->text_column, "of --data, for .jsonl and .parquet")->capture_default_str();
  command->add_option("--documents", o->documents, "only the first so many documents; 0: all")->capture_default_str();
  command->add_option("--max-tokens", o->max_tokens, "only about so many tokens; 0: all")->capture_default_str();
  command->add_option("--loops", o->loops,
                      "loop counts, like 1,2,4,8,16 (default: 1,2,4,8, the trained and twice that)");
  command->add_option("--prompt", o->prompts, "a prompt to go on with; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--tokenizer", o->tokenizer, "tokenizer file (default: the one the checkpoint names)");
  command->add_option("--dtype", o->dtype, "float32, bfloat16 or float64")->capture_default_str();
  command->add_option("--threads", o->threads, "0: all CPUs this process may use")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos eval runs/demo --loops 1,2,4,8 --prompt \"The capital of Japan is\"");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
