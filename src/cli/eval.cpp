#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/run_config.h"
#include "data/documents.h"
#include "infer/checkpoint_io.h"
#include "infer/evaluate.h"
#include "infer/generate.h"
#include "infer/prompts.h"
#include "report/eval_page.h"
#include "report/eval_text.h"
#include "storage/storage.h"

namespace mythos::cli {
namespace {

struct Options {
  std::filesystem::path checkpoint, prompts_file, page;
  std::string tokenizer, data, text_column = "text", loops, dtype = "float32";
  std::vector<std::string> prompts, tasks;
  int64_t documents = 0, max_tokens = 0, questions = 0, threads = 0;
  bool json = false, adaptive = false;
};

// What is sampled: every --prompt, then every line of --prompts.
std::vector<std::string> prompts_for(const Options& o, const Model& model, const Tokenizer& tokenizer,
                                     const GenerateOptions& generation) {
  for (const auto& prompt : o.prompts) prompt_ids(model.config(), tokenizer, prompt, generation);
  std::vector<std::string> prompts = o.prompts;
  if (o.prompts_file.empty()) return prompts;
  for (auto& [line, text] : read_prompts(o.prompts_file)) {
    try {
      prompt_ids(model.config(), tokenizer, text, generation);
    } catch (const Error& e) {
      throw usage_error(fmt::format("{}:{}: {}", o.prompts_file.string(), line, e.what()), e.hint());
    }
    prompts.push_back(std::move(text));
  }
  return prompts;
}

std::vector<int64_t> loop_counts(const Options& o, int64_t trained) {
  if (o.loops.empty()) return rising(std::vector<int64_t>{1, 2, 4, 8, trained}, 2 * trained);
  const std::vector<int64_t> asked = integers(o.loops, "--loops");
  std::vector<int64_t> counts = rising(asked, asked.front());
  if (counts.front() < 1) throw usage_error(fmt::format("--loops names {}, it must be at least 1", counts.front()));
  if (counts.back() > most_loops)
    throw usage_error(fmt::format("--loops names {}, at most {} are possible", counts.back(), most_loops));
  return counts;
}

// A page that cannot be written is said before hours of work, not after.
void require_folder_of(const std::filesystem::path& page) {
  if (page.empty()) return;
  const std::filesystem::path folder = page.parent_path().empty() ? "." : page.parent_path();
  std::error_code ec;
  if (!std::filesystem::is_directory(folder, ec))
    throw usage_error(fmt::format("{} cannot be written: there is no folder {}", page.string(), folder.string()));
  if (std::filesystem::is_directory(page, ec))
    throw usage_error(fmt::format("{} is a folder, --html wants the name of a file", page.string()));
}

std::function<void(double)> shown_as(std::string what) {
  return [what = std::move(what)](double share) {
    log::live_line(share < 1 ? fmt::format("{}: {:.0f}% done", what, 100 * share) : "");
    stop_if_asked("stopped before the evaluation was complete");
  };
}

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

constexpr int64_t adaptive_tokens = 1024;  // predicted one by one, so not more

void run(const Options& o) {
  set_threads(o.threads);
  require_folder_of(o.page);
  LoadedModel loaded = load_rounded_model(o.checkpoint, at::kCPU, dtype_from(o.dtype));
  Model& model = *loaded.model;
  const CheckpointMeta& meta = loaded.meta;
  const RunConfig config = parse_config(meta.config, "the checkpoint's config", "run");
  const Tokenizer tokenizer = load_tokenizer_of(meta, o.tokenizer);
  EvalReport report{.checkpoint = o.checkpoint.string(),
                    .step = meta.step,
                    .tokens = meta.tokens,
                    .parameters = parameter_count(meta.model),
                    .vocab_size = meta.model.vocab_size,
                    .experts_per_token = meta.model.n_experts_per_tok,
                    .trained_loops = config.train.loops.back(),
                    .document_separator = config.data.document_separator,
                    .radius = spectral_radius(model),
                    .sweep = {},
                    .adaptive = {},
                    .tasks = {},
                    .samples = {}};
  // What cannot be is said before anything is measured.
  const std::vector<int64_t> counts = loop_counts(o, report.trained_loops);
  GenerateOptions generation;
  generation.n_loops = report.trained_loops;
  const std::vector<std::string> prompts = prompts_for(o, model, tokenizer, generation);
  std::vector<ChoiceTask> tasks;
  for (const auto& file : o.tasks) tasks.push_back(read_choice_task(file, tokenizer, meta.model, o.questions));
  const auto documents = documents_for(o, config, meta, tokenizer);
  const auto say = [&](const std::string& text) {
    if (!o.json) print(text);
  };

  say(checkpoint_text(report));
  const EvaluationOptions options{.seq_len = config.train.seq_len,
                                  .batch = 8,
                                  .document_separator = report.document_separator,
                                  .n_loops = report.trained_loops,
                                  .max_tokens = o.max_tokens};
  if (documents.empty()) {
    say("held-out     none in this run's configuration; give text with --data SOURCE\n");
  } else {
    report.sweep = sweep_loops(model, tokenizer, documents, counts, options, shown_as("held-out text"));
    say(sweep_text(report));
  }
  if (o.adaptive && !documents.empty()) {
    report.adaptive =
        check_adaptive(model, tokenizer, documents, report.trained_loops, adaptive_tokens, shown_as("adaptive loops"));
    say(adaptive_text(*report.adaptive));
  }
  for (const auto& task : tasks) {
    report.tasks.push_back(
        score_choices(model, task, counts, report.trained_loops, options.batch * options.seq_len, shown_as(task.file)));
    say(task_text(report.tasks.back()));
  }
  for (const auto& prompt : prompts) {
    EvalReport::Sample sample{.prompt = prompt, .text = ""};
    generate(model, tokenizer, prompt, generation, [&](std::string_view piece) { sample.text += piece; });
    stop_if_asked("stopped before the evaluation was complete");
    say(sample_text(sample));
    report.samples.push_back(std::move(sample));
  }
  if (o.json) print_json(to_json(report));
  if (!o.page.empty()) write_file_atomically(o.page, eval_page(report));
}

}  // namespace

void add_eval(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("eval", "Loss and accuracy by loop count, rho(A), halting, experts, tasks, samples");
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
  command->add_option("--prompts", o->prompts_file, "a file with a prompt a line; blank lines do not count");
  command
      ->add_option("--task", o->tasks,
                   "multiple choice, a JSON object a line with question, choices and answer; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--questions", o->questions, "only the first so many of each task; 0: all")
      ->capture_default_str();
  command->add_option("--html", o->page, "also write all of it as one self-contained page with pictures");
  command->add_option("--tokenizer", o->tokenizer, "tokenizer file (default: the one the checkpoint names)");
  command->add_flag("--adaptive", o->adaptive,
                    "also what it costs in loss, and brings in speed, that a token's loops end when it halts");
  command->add_option("--dtype", o->dtype, "of the weights: float32, bfloat16 (computed in fp32) or float64")
      ->capture_default_str();
  command->add_option("--threads", o->threads, "0: all CPUs this process may use")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Example:\n  mythos eval runs/demo --loops 1,2,4,8 --prompt \"The capital of Japan is\" --html demo.html");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
