#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/inspect.h"
#include "data/prepare.h"
#include "data/tokenizer_source.h"
#include "base/machine.h"

#include <chrono>
#include <cmath>

namespace mythos::cli {
namespace {

struct Options {
  std::string source, text_column = "text", tokenizer;
  int samples = 3;
  bool json = false;
};

// "about 9,672,101 (give or take 12,000)", or a counted number as it is.
std::string estimate_text(const Estimate& e, std::string (*text)(double)) {
  if (e.error == 0) return text(e.value);
  return fmt::format("about {} (give or take {})", text(e.value), text(e.error));
}
std::string whole_text(double x) { return with_commas(static_cast<int64_t>(std::llround(x))); }
std::string size_text(double x) { return bytes_text(x); }
std::string rough_text(double x) { return si_text(x); }

void run_inspect(const Options& o) {
  DataOptions data;
  data.storage = std::make_shared<Storage>();
  data.sources = {o.source};
  data.text_column = o.text_column;
  std::optional<Encoder> encoder;
  if (!o.tokenizer.empty()) {
    const Tokenizer t = load_tokenizer(o.tokenizer, *data.storage);
    encoder = encoder_of(t);
    data.decode = [t](std::span<const int32_t> ids) { return t.decode(ids); };
  }
  const Corpus corpus(data);
  const SourceReport r = inspect(corpus, encoder ? &*encoder : nullptr, o.samples, [&](size_t done) {
    log::live_line(fmt::format("looking into files: {} of {}", done, corpus.files().size()));
    if (stop_requested()) throw Stopped("stopped");
  });
  log::live_line("");
  if (o.json) {
    print_json(to_json(r));
    return;
  }
  std::string text;
  text += fmt::format("{}\n", r.source);
  for (const auto& [repository, commit] : data.storage->commits()) {
    text += fmt::format("  revision   {} ({})\n", commit, repository);
  }
  text += fmt::format("  files      {}{}{}\n", with_commas(r.files),
                      r.files_skipped > 0 ? fmt::format(" ({} damaged, left out)", r.files_skipped) : "",
                      r.files_read < r.files ? fmt::format(" ({} looked into)", r.files_read) : "");
  text += fmt::format("  documents  {} in {} units of reading\n", estimate_text(r.documents, whole_text),
                      estimate_text(r.units, whole_text));
  text += fmt::format("  size       {} stored, {} of text\n", bytes_text(static_cast<double>(r.bytes)),
                      estimate_text(r.text_bytes, size_text));
  if (r.tokens) {
    text += fmt::format("  tokens     {}, from {} documents read\n", estimate_text(*r.tokens, rough_text),
                        with_commas(r.sampled));
  }
  if (r.sampled_empty + r.sampled_damaged > 0) {
    text += fmt::format("  of {} documents read {} are empty and {} damaged\n", with_commas(r.sampled),
                        with_commas(r.sampled_empty), with_commas(r.sampled_damaged));
  }
  for (const auto& s : r.samples) text += fmt::format("  sample     {}\n", s);
  print(text);
}

void add_inspect(CLI::App& parent) {
  auto o = std::make_shared<Options>();
  auto* inspect = parent.add_subcommand("inspect", "Files, documents, bytes, tokens and a few samples of a source");
  inspect->add_option("SRC", o->source, source_help)->required();
  inspect->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  inspect->add_option("--tokenizer", o->tokenizer, "estimate tokens with this tokenizer (a file or hf://OWNER/NAME)");
  inspect->add_option("--samples", o->samples, "documents to show")->capture_default_str()->check(CLI::Range(0, 1000));
  inspect->add_flag("--json", o->json, "one JSON document on standard output");
  inspect->footer("Example:\n  mythos data inspect data/demo/train.txt --tokenizer data/demo/tokenizer.json");
  inspect->callback([o] { run_inspect(*o); });
}

struct PrepareOptions {
  std::vector<std::string> sources;
  std::string text_column = "text", tokenizer, on_bad_data = "skip";
  std::filesystem::path out;
  int workers = 0;
  bool json = false;
};

void run_prepare(const PrepareOptions& o) {
  DataOptions data;
  data.storage = std::make_shared<Storage>();
  data.sources = o.sources;
  data.text_column = o.text_column;
  data.on_bad_data = on_bad_data_from(o.on_bad_data);
  data.workers = o.workers > 0 ? o.workers : static_cast<int>(usable_cpus());
  const Tokenizer tokenizer = load_tokenizer(o.tokenizer, *data.storage);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  auto told = begin;
  std::optional<int64_t> tokens_at_start;
  const auto progress = [&](const PrepareProgress& p) {
    if (stop_requested()) {
      log::live_line("");
      stop_if_asked(fmt::format("stopped; the same command goes on behind what is in {}", o.out.string()));
    }
    if (!tokens_at_start) tokens_at_start = p.tokens;
    const std::string text = fmt::format(
        "{:.1f}% | {} documents | {}tokens | {}tokens/s | file {} of {}", 100 * p.share, with_commas(p.documents),
        si_text(static_cast<double>(p.tokens)), si_text(static_cast<double>(p.tokens - *tokens_at_start) / seconds()),
        std::min(p.files_done + 1, p.files), p.files);
    log::live_line(text);
    const auto now = std::chrono::steady_clock::now();
    if (!log::is_terminal() && now - told > std::chrono::seconds(10)) {
      told = now;
      log::info("{}", text);
    }
  };
  PrepareReport r;
  try {
    r = prepare(data, encoder_of(tokenizer), o.out, progress);
  } catch (const Stopped&) {
    progress({});  // says what is left
    throw;
  }
  log::live_line("");
  if (r.was_done) {
    log::info("{} was prepared before: nothing is left to do", o.out.string());
  } else {
    if (r.tokens_before > 0) {
      log::info("went on behind {} tokens that were there", with_commas(r.tokens_before));
    }
    log::info(
        "{}: {} tokens of {} documents ({} skipped), {} on disk, in {:.1f} s; train on it with data.source = \"{}\"",
        o.out.string(), with_commas(r.info.tokens), with_commas(r.info.documents), with_commas(r.info.skipped),
        bytes_text(static_cast<double>(r.bytes)), seconds(), o.out.string());
  }
  if (!o.json) return;
  print_json({{"path", o.out.string()},
              {"tokens", r.info.tokens},
              {"documents", r.info.documents},
              {"skipped", r.info.skipped},
              {"text_bytes", r.info.text_bytes},
              {"tokenizer", r.info.tokenizer},
              {"was_done", r.was_done},
              {"tokens_before", r.tokens_before},
              {"seconds", seconds()}});
}

void add_prepare(CLI::App& parent) {
  auto o = std::make_shared<PrepareOptions>();
  auto* command =
      parent.add_subcommand("prepare", "Tokenize a source once, into files that train like the source itself");
  command->add_option("SRC", o->sources, source_help)->required();
  command->add_option("--tokenizer", o->tokenizer, "a tokenizer file, or hf://OWNER/NAME")->required();
  command->add_option("--out", o->out, "folder to write; an interrupted one is gone on with")->required();
  command->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  command->add_option("--workers", o->workers, "threads (default: all that this process may use)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--on-bad-data", o->on_bad_data, "skip (and count) or stop")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Example:\n  mythos data prepare hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT "
      "--tokenizer hf://openai/gpt-oss-20b --out data/fineweb-10BT");
  command->callback([o] { run_prepare(*o); });
}

}  // namespace

void add_data(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("data", "Look at a source of text; prepare it for training");
  command->require_subcommand(1);
  add_inspect(*command);
  add_prepare(*command);
}

}  // namespace mythos::cli
