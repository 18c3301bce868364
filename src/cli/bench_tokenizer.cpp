#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/units.h"
#include "cli/bench.h"
#include "cli/common.h"
#include "data/tokenizer_source.h"
#include "text/speed.h"

#include <algorithm>

namespace mythos::cli {
namespace {

std::string rate(double bytes_per_s) { return fmt::format("{:.1f} MB/s", bytes_per_s / 1e6); }

struct TokenizerOptions {
  std::string tokenizer;
  std::vector<std::filesystem::path> texts;
  int threads = 0, repetitions = 5;
  size_t document_bytes = 4096, hostile_bytes = 1'000'000;
  bool json = false;
};

struct TokenizerFigures {
  std::vector<TextSpeed> texts;
  std::vector<ThreadSpeed> threads;
  std::vector<HostileSpeed> hostile;
};

Json to_json(const TokenizerFigures& f, const Tokenizer& tokenizer, const TokenizerOptions& o) {
  Json json = {{"tokenizer", o.tokenizer},        {"fingerprint", tokenizer.fingerprint()},
               {"device", processor_name()}, {"document_bytes", o.document_bytes},
               {"repetitions", o.repetitions},    {"texts", Json::array()},
               {"threads", Json::array()},        {"hostile", Json::array()}};
  for (const auto& t : f.texts) {
    json["texts"].push_back({{"name", t.name},
                             {"documents", t.documents},
                             {"bytes", t.bytes},
                             {"tokens", t.tokens},
                             {"bytes_per_s", t.bytes_per_s},
                             {"tokens_per_s", t.tokens_per_s},
                             {"limit_split_bytes_per_s", t.split_bytes_per_s},
                             {"limit_read_bytes_per_s", t.read_bytes_per_s}});
  }
  for (const auto& t : f.threads) {
    json["threads"].push_back({{"threads", t.threads},
                               {"bytes_per_s", t.bytes_per_s},
                               {"speedup", t.speedup},
                               {"cpu_ns_per_byte", t.cpu_ns_per_byte}});
  }
  for (const auto& h : f.hostile) {
    json["hostile"].push_back({{"name", h.name},
                               {"bytes", h.bytes},
                               {"ns_per_byte", h.ns_per_byte},
                               {"ratio_of_twice_the_length", h.ratio},
                               {"against_prose", h.against_prose}});
  }
  return json;
}

std::string to_text(const TokenizerFigures& f, const TokenizerOptions& o) {
  std::string text = fmt::format("{}, {} on {}\n\n", o.tokenizer, "one thread", processor_name());
  text +=
      fmt::format("{:<28} {:>12} {:>14} {:>14} {:>14}\n", "text", "speed", "tokens/s", "limit: split", "limit: read");
  for (const auto& t : f.texts) {
    text += fmt::format("{:<28} {:>12} {:>14} {:>14} {:>14}\n", t.name, rate(t.bytes_per_s),
                        with_commas(static_cast<int64_t>(t.tokens_per_s)), rate(t.split_bytes_per_s),
                        rate(t.read_bytes_per_s));
  }
  text +=
      "Per second of processor time. Split: cutting into pieces alone, as if looking them up took no time. Read: one\n"
      "pass over the bytes; nothing that looks at them can be faster.\n";
  if (!f.threads.empty()) {
    text += fmt::format("\n{:<28} {:>12} {:>14} {:>14}\n", "threads", "speed", "speedup", "CPU ns/byte");
    for (const auto& t : f.threads) {
      text += fmt::format("{:<28} {:>12} {:>13.2f}x {:>14.2f}\n", t.threads, rate(t.bytes_per_s), t.speedup,
                          t.cpu_ns_per_byte);
    }
    text +=
        "By the clock, documents of the first text. CPU time per byte stays as it is where threads do not wait for\n"
        "each other; what else runs here slows the clock alone.\n";
  }
  if (!f.hostile.empty()) {
    text +=
        fmt::format("\n{:<28} {:>12} {:>14} {:>14} {:>14}\n", "hostile text", "bytes", "ns/byte", "2n / n", "of prose");
    for (const auto& h : f.hostile) {
      text += fmt::format("{:<28} {:>12} {:>14.1f} {:>13.2f}x {:>13.2f}x\n", h.name, with_commas(h.bytes),
                          h.ns_per_byte, h.ratio, h.against_prose);
    }
    text += "2n / n: time for twice the length; 2 is linear. Of prose: time per byte over that of the first text.\n";
  }
  return text;
}

void run_bench_tokenizer(const TokenizerOptions& o) {
  Storage storage;
  const Tokenizer tokenizer = load_tokenizer(o.tokenizer, storage);
  std::vector<SpeedText> texts;
  for (const auto& path : o.texts) {
    texts.push_back({path.filename().string(), read_file(path)});
    if (texts.back().bytes.empty()) throw usage_error(fmt::format("{}: the file is empty", path.string()));
  }
  if (texts.empty()) {
    constexpr size_t size = 8'000'000;
    texts = {generated_prose(size, 1), generated_code(size, 2)};
  }
  TokenizerFigures figures;
  for (const auto& text : texts) {
    figures.texts.push_back(measure_text(tokenizer, text, o.document_bytes, o.repetitions));
    stop_if_asked("stopped");
  }
  const int threads = o.threads > 0 ? o.threads : static_cast<int>(usable_cpus());
  if (threads > 1) {
    figures.threads = measure_threads(tokenizer, texts.front(), o.document_bytes, threads, o.repetitions);
    stop_if_asked("stopped");
  }
  if (o.hostile_bytes > 0) {
    figures.hostile = measure_hostile(tokenizer, o.hostile_bytes, figures.texts.front().bytes_per_s, o.repetitions);
  }
  if (o.json) {
    print_json(to_json(figures, tokenizer, o));
  } else {
    print(to_text(figures, o));
  }
}

}  // namespace

void add_bench_tokenizer(CLI::App& parent) {
  auto o = std::make_shared<TokenizerOptions>();
  auto* command = parent.add_subcommand("tokenizer", "Encoding speed: one thread, several, and on hostile text");
  command->add_option("--tokenizer", o->tokenizer, "a tokenizer file, or hf://OWNER/NAME")->required();
  command->add_option("--text", o->texts, "files to encode (default: generated prose and code)");
  command->add_option("--threads", o->threads, "the most threads to try; 1 leaves them out (default: all processors)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--document-bytes", o->document_bytes, "texts are cut at the first line end after so many bytes")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--hostile-bytes", o->hostile_bytes, "length of the hostile texts; 0 leaves them out")
      ->capture_default_str()
      ->check(CLI::Range(0, 50'000'000));
  command->add_option("--repetitions", o->repetitions, "of every measurement; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos bench tokenizer --tokenizer tokenizer.json --text prose.txt code.txt");
  command->callback([o] { run_bench_tokenizer(*o); });
}

}  // namespace mythos::cli
