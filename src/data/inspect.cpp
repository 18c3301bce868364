#include "data/inspect.h"

#include <algorithm>

namespace mythos {
namespace {

constexpr int64_t sampled_units = 16;
constexpr int64_t documents_a_unit = 100;
constexpr size_t sample_bytes = 400;

std::string begin_of(std::string_view text) {
  if (text.size() <= sample_bytes) return std::string(text);
  size_t n = sample_bytes;
  while (n > sample_bytes - 4 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  return std::string(text.substr(0, n)) + "...";
}

}  // namespace

SourceReport inspect(const Corpus& corpus, const DataOptions& options, const Encoder* encoder, int n_samples) {
  SourceReport report;
  report.source = options.source;
  report.files = std::ssize(corpus.files());
  report.files_skipped = corpus.files_skipped();
  report.units = std::ssize(corpus.units());
  report.documents = corpus.documents();
  for (const SourceFile& file : corpus.files()) report.bytes += file.size;

  const int64_t n_units = std::min(report.units, sampled_units);
  std::vector<int32_t> ids;
  int64_t tokens = 0;
  for (int64_t i = 0; i < n_units; ++i) {
    const auto reader = corpus.read(i * report.units / n_units);
    Entry entry;
    bool shown = false;
    for (int64_t n = 0; n < documents_a_unit && reader->next(entry); ++n) {
      report.sampled += 1;
      report.sampled_empty += entry.kind == Entry::Kind::empty ? 1 : 0;
      report.sampled_damaged += entry.kind == Entry::Kind::damaged ? 1 : 0;
      if (entry.kind != Entry::Kind::text) continue;
      report.sampled_bytes += static_cast<int64_t>(entry.text.size());
      if (encoder != nullptr) {
        ids.clear();
        encoder->encode(entry.text, ids);
        tokens += std::ssize(ids);
      }
      // One from each unit, or several where there are few units.
      if (std::ssize(report.samples) < n_samples && (!shown || n_units < n_samples)) {
        report.samples.push_back(begin_of(entry.text));
        shown = true;
      }
    }
  }
  const double scale =
      report.sampled > 0 ? static_cast<double>(report.documents) / static_cast<double>(report.sampled) : 0;
  report.text_bytes = scale * static_cast<double>(report.sampled_bytes);
  if (encoder != nullptr) {
    report.sampled_tokens = tokens;
    report.tokens = scale * static_cast<double>(tokens);
  }
  return report;
}

Json to_json(const SourceReport& report) {
  // Samples may hold any bytes; what is not UTF-8 is replaced, so that the document can be written.
  Json samples = Json::array();
  for (const std::string& sample : report.samples) {
    const std::string dumped = Json(sample).dump(-1, ' ', false, Json::error_handler_t::replace);
    samples.push_back(Json::parse(dumped));
  }
  Json json{{"source", report.source},
            {"files", report.files},
            {"files_skipped", report.files_skipped},
            {"units", report.units},
            {"documents", report.documents},
            {"bytes", report.bytes},
            {"sampled_documents", report.sampled},
            {"sampled_empty", report.sampled_empty},
            {"sampled_damaged", report.sampled_damaged},
            {"sampled_bytes", report.sampled_bytes},
            {"estimated_text_bytes", static_cast<int64_t>(report.text_bytes)}};
  if (report.tokens) {
    json["sampled_tokens"] = *report.sampled_tokens;
    json["estimated_tokens"] = static_cast<int64_t>(*report.tokens);
  }
  json["samples"] = std::move(samples);
  return json;
}

}  // namespace mythos
