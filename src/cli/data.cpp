#include "base/error.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/inspect.h"
#include "text/tokenizer.h"

namespace mythos::cli {
namespace {

struct Options {
  std::string source, text_column = "text";
  std::filesystem::path tokenizer;
  int samples = 3;
  bool json = false;
};

void run_inspect(const Options& o) {
  DataOptions data;
  data.source = o.source;
  data.text_column = o.text_column;
  const Corpus corpus(data);
  std::optional<Encoder> encoder;
  if (!o.tokenizer.empty()) {
    const Tokenizer t = Tokenizer::load(o.tokenizer);
    encoder = Encoder{[t](std::string_view text, std::vector<int32_t>& out) { t.encode(text, out); }, t.fingerprint(),
                      t.end_of_text(), t.n_ids()};
  }
  const SourceReport r = inspect(corpus, data, encoder ? &*encoder : nullptr, o.samples);
  if (o.json) {
    print_json(to_json(r));
    return;
  }
  std::string text;
  text += fmt::format("{}\n", r.source);
  text += fmt::format("  files      {}{}\n", with_commas(r.files),
                      r.files_skipped > 0 ? fmt::format(" ({} damaged, left out)", r.files_skipped) : "");
  text += fmt::format("  documents  {} in {} units of reading\n", with_commas(r.documents), with_commas(r.units));
  text += fmt::format("  size       {} on disk, about {} of text\n", bytes_text(static_cast<double>(r.bytes)),
                      bytes_text(r.text_bytes));
  if (r.tokens)
    text += fmt::format("  tokens     about {} (from {} documents read)\n", si_text(*r.tokens), with_commas(r.sampled));
  for (const auto& s : r.samples) text += fmt::format("  sample     {}\n", s);
  print(text);
}

}  // namespace

void add_data(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("data", "Look at a source of text");
  command->require_subcommand(1);
  auto o = std::make_shared<Options>();
  auto* inspect = command->add_subcommand("inspect", "Files, documents, bytes, tokens and a few samples of a source");
  inspect->add_option("SRC", o->source, "a file, folder or glob of .txt, .jsonl or .parquet")->required();
  inspect->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  inspect->add_option("--tokenizer", o->tokenizer, "estimate tokens with this tokenizer");
  inspect->add_option("--samples", o->samples, "documents to show")->capture_default_str()->check(CLI::Range(0, 1000));
  inspect->add_flag("--json", o->json, "one JSON document on standard output");
  inspect->footer("Example:\n  mythos data inspect data/demo/train.txt --tokenizer data/demo/tokenizer.json");
  inspect->callback([o] { run_inspect(*o); });
}

}  // namespace mythos::cli
