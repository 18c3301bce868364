#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "data/documents.h"
#include "data/speed.h"
#include "data/tokenizer_source.h"

#include <unistd.h>

#include <cmath>

namespace mythos::cli {
namespace {

struct Options {
  std::string source, text, text_column = "text", tokenizer;
  int64_t megabytes = 64, seq_len = 2048, lanes = 16;
  int workers = 1, rounds = 3;
  bool json = false;
};

// A folder for the generated files, removed in the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mythos-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw failure("cannot create a temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<std::string> read_documents(const std::string& source, const std::string& column, uint64_t bytes) {
  DataOptions data;
  data.sources = {source};
  data.text_column = column;
  DocumentReader reader(std::make_shared<const Corpus>(data), OnBadData::skip);
  std::vector<std::string> documents;
  uint64_t size = 0;
  for (std::string text; size < bytes && reader.next(text); size += text.size()) documents.push_back(text);
  return documents;
}

void say(const char* what, const StreamSpeed& s, const std::string& more = "") {
  print(fmt::format("{:<11} {}tokens/s, {}/s of text, {:.2f} cores: {}tokens/s per core{}\n", what,
                    si_text(s.tokens_per_second()), bytes_text(static_cast<double>(s.text_bytes) / s.seconds),
                    s.cores(), si_text(s.tokens_per_core_second()), more));
}

void run(const Options& o) {
  DataOptions data;
  data.storage = std::make_shared<Storage>();
  const Tokenizer tokenizer = load_tokenizer(o.tokenizer, *data.storage);
  const Encoder encoder = encoder_of(tokenizer);
  data.text_column = o.text_column;
  data.seq_len = o.seq_len;
  data.lanes = o.lanes;
  data.workers = o.workers;
  data.epochs = 1;
  std::optional<Folder> folder;
  std::optional<LocalServer> server;
  std::vector<std::string> documents;
  if (o.source.empty()) {
    const auto bytes = static_cast<uint64_t>(o.megabytes) * 1'000'000;
    documents = make_documents(read_documents(o.text, o.text_column, bytes), bytes, 1);
    folder.emplace();
    constexpr int files = 4;
    write_fineweb_shaped(folder->path(), documents, files);
    server.emplace(folder->path());
    data.sources = {server->address() + "/sample/10BT/"};
    if (!o.json) {
      print(
          fmt::format("source      {} documents like web pages made from {}: {} Parquet files, row groups of 1,000, "
                      "served by nginx at {}\n",
                      with_commas(std::ssize(documents)), o.text, files, server->address()));
    }
  } else {
    data.sources = {o.source};
    documents = read_documents(o.source, o.text_column, 16 << 20);
    if (!o.json) print(fmt::format("source      {}\n", o.source));
  }
  if (!o.json) {
    print(fmt::format("rows        {} ids, {} lanes, {} worker{}; tokenizer {}\n", o.seq_len + 1, o.lanes, o.workers,
                      o.workers == 1 ? "" : "s", o.tokenizer));
  }
  // Side by side, so that what else the machine does meets both.
  Json rounds = Json::array();
  StreamSpeed best;
  StreamSpeed alone;
  for (int i = 0; i < o.rounds; ++i) {
    const StreamSpeed encoding = measure_encoding(documents, encoder);
    const StreamSpeed streaming = measure_stream(data, encoder);
    stop_if_asked("stopped");
    if (best.cpu_seconds == 0 || streaming.tokens_per_core_second() > best.tokens_per_core_second()) best = streaming;
    if (alone.cpu_seconds == 0 || encoding.tokens_per_core_second() > alone.tokens_per_core_second()) alone = encoding;
    rounds.push_back({{"stream", to_json(streaming)}, {"tokenizer_alone", to_json(encoding)}});
    if (!o.json) {
      say("stream", streaming);
      say("tokenizer", encoding, " (alone, one thread: the limit)");
    }
  }
  const double share = best.tokens_per_core_second() / alone.tokens_per_core_second();
  if (!o.json) {
    print(fmt::format("best        {}packed tokens/s per core used; {:.0f}% of the tokenizer alone\n",
                      si_text(best.tokens_per_core_second()), 100 * share));
    return;
  }
  print_json({{"tokens_per_core_s", best.tokens_per_core_second()},
              {"tokens_per_s", best.tokens_per_second()},
              {"tokenizer_alone_tokens_per_s", alone.tokens_per_second()},
              {"fraction_of_limit", share},
              {"workers", o.workers},
              {"rounds", std::move(rounds)}});
}

}  // namespace

void add_bench_data(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  auto* command = bench.add_subcommand("data", "How fast text is streamed, tokenized and packed");
  command->add_option("--tokenizer", o->tokenizer, "a tokenizer file, or hf://OWNER/NAME")->required();
  auto* source = command->add_option("--source", o->source, "stream this source instead of generated files");
  command->add_option("--text", o->text, "real text to make documents from, served by a local nginx")->excludes(source);
  command->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  command->add_option("--megabytes", o->megabytes, "of generated text")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command->add_option("--workers", o->workers, "threads")->capture_default_str()->check(CLI::Range(1, 1024));
  command->add_option("--lanes", o->lanes, "see data.lanes")->capture_default_str()->check(CLI::Range(1, 4096));
  command->add_option("--seq-len", o->seq_len, "see train.seq_len")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--rounds", o->rounds, "times to measure")->capture_default_str()->check(CLI::Range(1, 1000));
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos bench data --tokenizer o200k_base.tiktoken --text data/demo/train.txt");
  command->callback([o] {
    if (o->source.empty() && o->text.empty()) {
      throw usage_error("there is no text to stream", "give some with --text FILE, or a source with --source SRC");
    }
    run(*o);
  });
}

}  // namespace mythos::cli
