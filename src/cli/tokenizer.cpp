#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/documents.h"
#include "data/tokenizer_source.h"
#include "base/machine.h"
#include "text/encode_lines.h"
#include "text/training.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <iterator>

namespace mythos::cli {
namespace {

Tokenizer tokenizer_at(const std::string& where) {
  Storage storage;
  return load_tokenizer(where, storage);
}

void add_train_command(CLI::App& parent) {
  struct Options {
    std::string source, text_column = "text";
    TokenizerTraining training;
    std::filesystem::path out;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand("train", "Learn a byte-pair vocabulary from text");
  command->add_option("SRC", o->source, source_help)->required();
  command->add_option("--vocab", o->training.vocab_size, "tokens, the 256 bytes and the end of text among them")
      ->capture_default_str();
  command->add_option("--out", o->out, "file to write")->required();
  command->add_option("--text-column", o->text_column, "of .jsonl and .parquet")->capture_default_str();
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos tokenizer train corpus.txt --vocab 8192 --out tokenizer.json");
  command->callback([o] {
    DataOptions data;
    data.sources = {o->source};
    data.text_column = o->text_column;
    const auto corpus = std::make_shared<const Corpus>(data);
    DocumentReader reader(corpus, OnBadData::skip);
    const auto begin = std::chrono::steady_clock::now();
    auto told = begin;
    const auto progress = [&](const TrainingProgress& p) {
      stop_if_asked("stopped; nothing was written");
      const auto now = std::chrono::steady_clock::now();
      const std::string text =
          p.reading ? fmt::format("reading: {} of {}, {} distinct pieces", bytes_text(static_cast<double>(p.bytes)),
                                  bytes_text(static_cast<double>(corpus->bytes())), with_commas(p.pieces))
                    : fmt::format("merging: {} of {} tokens", with_commas(p.tokens), with_commas(p.vocab_size));
      log::live_line(text);
      if (!log::is_terminal() && now - told > std::chrono::seconds(10)) {
        told = now;
        log::info("{}", text);
      }
    };
    const Tokenizer tokenizer =
        train_tokenizer([&](std::string& text) { return reader.next(text); }, o->training, progress);
    tokenizer.save(o->out);
    log::live_line("");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    log::info("{}: {} tokens from {} documents, {}, in {:.1f} s", o->out.string(), with_commas(tokenizer.n_ids()),
              with_commas(reader.documents()), bytes_text(static_cast<double>(corpus->bytes())), seconds);
    if (o->json) {
      print_json({{"path", o->out.string()},
                  {"tokens", tokenizer.n_ids()},
                  {"fingerprint", tokenizer.fingerprint()},
                  {"documents", reader.documents()},
                  {"bytes", corpus->bytes()},
                  {"seconds", seconds}});
    }
  });
}

// Standard input as it comes; looks up now and then while it waits.
size_t read_input(char* bytes, size_t size, const std::atomic<bool>& given_up) {
  constexpr int wait_ms = 100;
  while (!given_up) {
    stop_if_asked("stopped");
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, wait_ms) == 0) continue;
    const ssize_t n = ::read(STDIN_FILENO, bytes, size);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR && errno != EAGAIN) {
      throw failure(fmt::format("cannot read standard input: {}", std::strerror(errno)));
    }
  }
  return 0;
}

void add_encode_command(CLI::App& parent) {
  struct Options {
    std::string tokenizer;
    std::string text;
    bool json_lines = false, json = false, has_text = false;
    int threads = 0;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand("encode", "Text to token ids");
  command->add_option("--tokenizer", o->tokenizer, "a tokenizer file, or hf://OWNER/NAME")->required();
  command->add_option_function<std::string>(
      "TEXT",
      [o](const std::string& text) {
        o->text = text;
        o->has_text = true;
      },
      "text (default: standard input)");
  command->add_flag("--json-lines", o->json_lines, "one {\"text\": ..} a line in, one {\"ids\": [..]} a line out");
  command->add_option("--threads", o->threads, "that share the lines of --json-lines (default: all processors)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", o->json, "one JSON document on standard output: {\"ids\": [..]}");
  command->footer("Example:\n  mythos tokenizer encode --tokenizer tokenizer.json \"Hello, world!\"");
  command->callback([o] {
    const Tokenizer tokenizer = tokenizer_at(o->tokenizer);
    if (o->json_lines) {
      encode_json_lines({read_input, [](std::string_view bytes) { print(std::string(bytes)); }}, tokenizer,
                        static_cast<int>(o->threads > 0 ? o->threads : usable_cpus()));
      return;
    }
    std::ios::sync_with_stdio(false);
    std::string text = o->text;
    if (!o->has_text) text.assign(std::istreambuf_iterator<char>(std::cin), {});
    if (o->json) return print_json({{"ids", tokenizer.encode(text)}});
    std::string out;
    for (const int32_t id : tokenizer.encode(text)) {
      if (!out.empty()) out += ' ';
      out += fmt::format("{}", id);
    }
    print(out + "\n");
  });
}

void add_decode_command(CLI::App& parent) {
  struct Options {
    std::string tokenizer;
    std::vector<int64_t> ids;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand("decode", "Token ids to text");
  command->add_option("--tokenizer", o->tokenizer, "a tokenizer file, or hf://OWNER/NAME")->required();
  command->add_option("IDS", o->ids, "ids (default: from standard input, with blanks or commas between)");
  command->add_flag("--json", o->json, "one JSON document on standard output: {\"text\": ..}");
  command->footer("Example:\n  mythos tokenizer decode --tokenizer tokenizer.json 13225 11 2375 0");
  command->callback([o] {
    const Tokenizer tokenizer = tokenizer_at(o->tokenizer);
    std::vector<int64_t> ids = o->ids;
    if (ids.empty()) {
      std::string text(std::istreambuf_iterator<char>(std::cin), {});
      std::string word;
      text += ' ';
      for (const char c : text) {
        if (c != ' ' && c != ',' && c != '\n' && c != '\t' && c != '\r' && c != '[' && c != ']') {
          word += c;
        } else if (!word.empty()) {
          ids.push_back(integers(word, "an id").front());
          word.clear();
        }
      }
    }
    std::vector<int32_t> narrow;
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokenizer.n_ids()) {
        throw usage_error(fmt::format("id {} is outside the tokenizer's {} ids", id, with_commas(tokenizer.n_ids())));
      }
      narrow.push_back(static_cast<int32_t>(id));
    }
    if (o->json) return print_json({{"text", tokenizer.decode(narrow)}});
    print(tokenizer.decode(narrow));
    if (log::is_terminal()) print("\n");
  });
}

void add_fetch_command(CLI::App& parent) {
  struct Options {
    std::string address;
    std::filesystem::path out;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  auto* command = parent.add_subcommand("fetch", "Get a tokenizer from the Hugging Face hub or another address");
  command->add_option("ADDRESS", o->address, "hf://OWNER/NAME, or the address of a tokenizer file")->required();
  command->add_option("--out", o->out, "also write it as one file (our own format), for machines without a network");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos tokenizer fetch hf://openai/gpt-oss-20b --out gpt-oss.tokenizer");
  command->callback([o] {
    const Tokenizer tokenizer = tokenizer_at(o->address);
    if (!o->out.empty()) tokenizer.save(o->out);
    log::info("{}: {} ordinary tokens, {} ids, fingerprint {}{}", o->address, with_commas(tokenizer.n_ordinary()),
              with_commas(tokenizer.n_ids()), tokenizer.fingerprint(),
              o->out.empty() ? "" : fmt::format("; written to {}", o->out.string()));
    if (!o->json) return;
    print_json({{"address", o->address},
                {"path", o->out.empty() ? Json(nullptr) : Json(o->out.string())},
                {"ordinary_tokens", tokenizer.n_ordinary()},
                {"ids", tokenizer.n_ids()},
                {"fingerprint", tokenizer.fingerprint()}});
  });
}

}  // namespace

void add_tokenizer(CLI::App& app, Result&) {
  auto* command = app.add_subcommand("tokenizer", "Train or fetch a tokenizer; encode and decode text");
  command->require_subcommand(1);
  add_train_command(*command);
  add_encode_command(*command);
  add_decode_command(*command);
  add_fetch_command(*command);
}

}  // namespace mythos::cli
