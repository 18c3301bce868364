#include "data/inspect.h"

#include "storage/storage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace mythos {
namespace {

constexpr size_t sampled_units = 32;
constexpr int64_t encoded_documents = 3200;
constexpr int64_t most_of_unit = 5000;  // documents
constexpr double most_bytes_of_unit = 32e6;
constexpr int64_t files_counted = 32;
constexpr size_t sample_bytes = 400;

std::string begin_of(std::string_view text) {
  if (text.size() <= sample_bytes) return std::string(text);
  size_t n = sample_bytes;
  while (n > sample_bytes - 4 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  return std::string(text.substr(0, n)) + "...";
}

struct Unit {
  size_t file;
  int64_t part;
};

// Every n-th of `all` indexes, `n` at most.
std::vector<size_t> spread(size_t all, size_t n) {
  std::vector<size_t> chosen;
  n = std::min(all, n);
  for (size_t i = 0; i < n; ++i) chosen.push_back(i * all / n);
  return chosen;
}

// Groups of things, and a figure of each thing.
class Sample {
 public:
  void add(double figure, double size) {
    figure_ += figure;
    size_ += size;
    ++n_;
    sum_ += figure;
    figure_figure_ += figure * figure;
    figure_size_ += figure * size;
    size_size_ += size * size;
  }
  // Ends a group.
  void close() {
    if (size_ > 0) {
      figures_.push_back(figure_);
      sizes_.push_back(size_);
    }
    figure_ = size_ = 0;
  }
  [[nodiscard]] double figure() const { return sum_; }
  [[nodiscard]] Estimate scaled_to(const Estimate& size) const {
    Estimate estimate = scaled(figures_, sizes_, size);
    const double seen = std::accumulate(sizes_.begin(), sizes_.end(), 0.0);
    if (n_ < 2 || seen <= 0 || size.value <= seen) return estimate;
    // Groups that are alike by chance say nothing of how their members differ.
    const double ratio = sum_ / seen;
    const double off = std::max(0.0, figure_figure_ - 2 * ratio * figure_size_ + ratio * ratio * size_size_);
    const double of_ratio = std::sqrt(off * n_ / (n_ - 1) * (1 - seen / size.value)) / seen;
    estimate.error = std::hypot(estimate.error, 1.96 * of_ratio * size.value);
    return estimate;
  }

 private:
  std::vector<double> figures_, sizes_;
  double figure_ = 0, size_ = 0;  // of the group that is open
  double n_ = 0, sum_ = 0;
  double figure_figure_ = 0, figure_size_ = 0, size_size_ = 0;  // sums of products
};

// So many times each unit is drawn: every one once where there are few, else by stored bytes in even steps.
std::map<size_t, int64_t> draw(const std::vector<double>& stored) {
  std::map<size_t, int64_t> drawn;
  const double all = std::accumulate(stored.begin(), stored.end(), 0.0);
  if (stored.size() <= sampled_units || all <= 0) {
    for (const size_t i : spread(stored.size(), sampled_units)) drawn[i] = 1;
    return drawn;
  }
  double before = 0;
  size_t i = 0;
  for (size_t n = 0; n < sampled_units; ++n) {
    const double at = (static_cast<double>(n) + 0.5) / static_cast<double>(sampled_units) * all;
    while (i + 1 < stored.size() && before + stored[i] <= at) before += stored[i++];
    ++drawn[i];
  }
  return drawn;
}

// The text of the source from how much text a stored byte gives in units drawn by stored bytes.
Estimate by_stored_bytes(const std::vector<double>& ratios, const std::vector<double>& stored, const Estimate& sum,
                         const SourceReport& report) {
  if (ratios.size() < 2) return {sum.value, sum.value};
  double all = std::accumulate(stored.begin(), stored.end(), 0.0);
  // Where only some files were looked into, the others are taken to be like them.
  const Estimate files =
      report.files_read < report.files ? Estimate{report.documents.value, report.documents.error} : Estimate{1, 0};
  const auto n = static_cast<double>(ratios.size());
  const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / n;
  double squares = 0;
  for (const double ratio : ratios) squares += (ratio - mean) * (ratio - mean);
  if (report.files_read < report.files) {
    all *= static_cast<double>(report.files) / static_cast<double>(report.files_read);
  }
  const double value = mean * all;
  const double spread_error = 1.96 * std::sqrt(squares / (n - 1) / n) * all;
  const double inside = sum.value > 0 ? sum.error / sum.value * value : 0;
  const double of_files = files.value > 0 ? files.error / files.value * value : 0;
  return {value, std::hypot(std::hypot(spread_error, inside), of_files)};
}

}  // namespace

Estimate scaled(const std::vector<double>& figures, const std::vector<double>& sizes, const Estimate& documents) {
  const double sum = std::accumulate(figures.begin(), figures.end(), 0.0);
  const double size = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  if (size <= 0) return {};
  const double ratio = sum / size;
  const auto m = static_cast<double>(figures.size());
  double squares = 0;
  for (size_t i = 0; i < figures.size(); ++i) {
    const double off = figures[i] - ratio * sizes[i];
    squares += off * off;
  }
  // Units are drawn, not documents: neighbours in a file are alike. A part of everything that was drawn is no guess.
  const double unseen = documents.value > size ? 1 - size / documents.value : 0;
  const double of_ratio = m > 1 ? std::sqrt(squares * m / (m - 1) * unseen) / size : ratio * (unseen > 0 ? 1 : 0);
  const double relative = documents.value > 0 ? documents.error / documents.value : 0;
  const double value = ratio * documents.value;
  return {value, std::hypot(1.96 * of_ratio * documents.value, relative * value)};
}

SourceReport inspect(const Corpus& corpus, const Encoder* encoder, int n_samples,
                     const std::function<void(size_t)>& progress) {
  SourceReport report;
  report.source = corpus.name();
  report.files = std::ssize(corpus.files());
  report.bytes = corpus.bytes();

  // How many units and documents: counted, or where thousands of files are far away, from a sample of files by size.
  std::vector<Unit> units;
  const bool all = report.files <= files_counted || !is_address(corpus.files().front().location);
  if (all) {
    const Corpus::Totals totals = corpus.totals(progress);
    report.files_read = report.files;
    report.units = {static_cast<double>(totals.units), 0};
    report.documents = {static_cast<double>(totals.documents), 0};
  }
  std::vector<double> documents_in;
  std::vector<double> units_in;
  std::vector<double> sizes;
  const auto chosen = spread(corpus.files().size(), all ? corpus.files().size() : static_cast<size_t>(files_counted));
  for (const size_t file : chosen) {
    const int64_t n = corpus.count(file);
    double documents = 0;
    for (int64_t part = 0; part < n; ++part) {
      units.push_back({file, part});
      if (!all) documents += static_cast<double>(corpus.info(file, part).documents);
    }
    if (all) continue;
    documents_in.push_back(documents);
    units_in.push_back(static_cast<double>(n));
    sizes.push_back(static_cast<double>(corpus.files()[file].size));
    if (progress) progress(++report.files_read);
  }
  if (!all) {
    report.files_read = std::ssize(sizes);
    report.units = scaled(units_in, sizes, {static_cast<double>(report.bytes), 0});
    report.documents = scaled(documents_in, sizes, {static_cast<double>(report.bytes), 0});
  }

  // Which units are looked into is drawn by their stored bytes, so that the few large ones of a skewed source are not
  // missed. Of these all documents are measured, and every few of them encoded: how many bytes a document has varies
  // far more than how many tokens a byte gives.
  std::vector<double> stored;
  for (const Unit& unit : units) stored.push_back(static_cast<double>(corpus.info(unit.file, unit.part).bytes));
  const std::map<size_t, int64_t> drawn = draw(stored);
  const bool every_unit = drawn.size() == units.size();
  Sample density;              // bytes -> tokens
  std::vector<double> ratios;  // text to stored bytes, one for each draw
  Estimate sum;                // of the text of the drawn units
  std::vector<int32_t> ids;
  const int64_t encoded_of_each = drawn.empty() ? 0 : encoded_documents / std::ssize(drawn);
  const bool few = drawn.size() < 8;  // then single documents count as drawn, to see how they differ
  for (const auto& [i, times] : drawn) {
    const int64_t documents = corpus.info(units[i].file, units[i].part).documents;
    const int64_t stride = std::max<int64_t>(1, documents / encoded_of_each);
    const auto reader = corpus.read(units[i].file, units[i].part);
    Entry entry;
    Sample lengths;  // documents -> bytes
    bool shown = false;
    double bytes_here = 0;
    for (int64_t n = 0; n < most_of_unit && bytes_here < most_bytes_of_unit && reader->next(entry); ++n) {
      report.sampled += entry.count;
      report.sampled_empty += entry.kind == Entry::Kind::empty ? 1 : 0;
      report.sampled_damaged += entry.kind == Entry::Kind::damaged ? entry.count : 0;
      const bool prepared = entry.kind == Entry::Kind::tokens;
      const bool has_text = prepared || entry.kind == Entry::Kind::text;
      const auto bytes = static_cast<double>(prepared ? entry.text_bytes : has_text ? std::ssize(entry.text) : 0);
      bytes_here += bytes;
      lengths.add(bytes, static_cast<double>(entry.count));
      lengths.close();
      if (!has_text || (!prepared && n % stride != 0)) continue;
      if (prepared) {
        density.add(static_cast<double>(entry.ids.size()), bytes);
      } else if (encoder != nullptr) {
        ids.clear();
        encoder->encode(entry.text, ids);
        density.add(static_cast<double>(ids.size()), bytes);
      }
      if (few) density.close();
      // One from each unit, or several where there are few units.
      const bool can_show = entry.kind == Entry::Kind::text || encoder != nullptr;
      if (can_show && std::ssize(report.samples) < n_samples && (!shown || std::ssize(drawn) < n_samples)) {
        report.samples.push_back(begin_of(corpus.text_of(entry)));
        shown = true;
      }
    }
    report.sampled_bytes += static_cast<int64_t>(bytes_here);
    density.close();
    const Estimate whole = lengths.scaled_to({static_cast<double>(documents), 0});
    sum.value += whole.value;
    sum.error = std::hypot(sum.error, whole.error);
    if (stored[i] > 0) ratios.insert(ratios.end(), static_cast<size_t>(times), whole.value / stored[i]);
  }
  report.files_skipped = corpus.files_skipped();
  report.text_bytes = every_unit && all ? sum : by_stored_bytes(ratios, stored, sum, report);
  if (density.figure() > 0 || encoder != nullptr) {
    report.sampled_tokens = static_cast<int64_t>(density.figure());
    report.tokens = density.scaled_to(report.text_bytes);
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
  const auto whole = [](double x) { return static_cast<int64_t>(std::llround(x)); };
  Json json{{"source", report.source},
            {"files", report.files},
            {"files_skipped", report.files_skipped},
            {"files_read", report.files_read},
            {"bytes", report.bytes},
            {"units", whole(report.units.value)},
            {"units_error", whole(report.units.error)},
            {"documents", whole(report.documents.value)},
            {"documents_error", whole(report.documents.error)},
            {"sampled_documents", report.sampled},
            {"sampled_empty", report.sampled_empty},
            {"sampled_damaged", report.sampled_damaged},
            {"sampled_bytes", report.sampled_bytes},
            {"estimated_text_bytes", whole(report.text_bytes.value)},
            {"estimated_text_bytes_error", whole(report.text_bytes.error)}};
  if (report.tokens) {
    json["sampled_tokens"] = *report.sampled_tokens;
    json["estimated_tokens"] = whole(report.tokens->value);
    json["estimated_tokens_error"] = whole(report.tokens->error);
  }
  json["samples"] = std::move(samples);
  return json;
}

}  // namespace mythos
