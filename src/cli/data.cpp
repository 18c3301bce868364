#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/inspect.h"
#include "data/tokenizer_source.h"

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

}  // namespace

void add_data(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("data", "Look at a source of text");
  command->require_subcommand(1);
  auto o = std::make_shared<Options>();
  auto* inspect = command->add_subcommand("inspect", "Files, documents, bytes, tokens and a few samples of a source");
  inspect->add_option("SRC", o->source, source_help)->required();
  inspect->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  inspect->add_option("--tokenizer", o->tokenizer, "estimate tokens with this tokenizer");
  inspect->add_option("--samples", o->samples, "documents to show")->capture_default_str()->check(CLI::Range(0, 1000));
  inspect->add_flag("--json", o->json, "one JSON document on standard output");
  inspect->footer("Example:\n  mythos data inspect data/demo/train.txt --tokenizer data/demo/tokenizer.json");
  inspect->callback([o] { run_inspect(*o); });
}

}  // namespace mythos::cli
