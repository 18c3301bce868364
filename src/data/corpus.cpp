#include "data/corpus.h"

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "data/json_line.h"
#include "data/line_reader.h"
#include "data/parquet.h"
#include "storage/storage.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <utility>

namespace mythos {
namespace {

constexpr std::array<std::string_view, 3> extensions{".txt", ".jsonl", ".parquet"};

bool is_parquet(const SourceFile& file) { return file_extension(file.location) == ".parquet"; }

// A first line that is an object without the column is a wrong setting, not bad data.
void check_column(std::string_view line, const std::string& column, const std::string& name) {
  JsonLine json;
  std::vector<std::string> keys;
  if (json.find(line, column, &keys) == JsonLine::Result::missing) {
    throw usage_error(fmt::format("{} has no column '{}'", name, column), suggestion(column, keys));
  }
}

}  // namespace

void BadData::report(const std::string& problem) {
  if (policy_ == OnBadData::stop) {
    throw failure(problem, "repair or remove it, or set data.on_bad_data to skip");
  }
  if (quiet_) return;
  constexpr int64_t shown = 20;
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++reported_;
  }
  if (number <= shown) log::warn("{}; it is left out", problem);
  if (number == shown) log::warn("more bad data is left out and counted, but no longer listed");
}

Corpus::Corpus(const DataOptions& options)
    : storage_(options.storage ? options.storage : std::make_shared<Storage>()),
      source_(options.source),
      column_(options.text_column),
      max_document_bytes_(options.max_document_bytes),
      files_(storage_->list(options.source, extensions)) {
  open_files_.resize(files_.size());
  open_parquets_.resize(files_.size());
  BadData bad(options.on_bad_data);
  for (uint32_t file = 0; file < files_.size(); ++file) {
    if (is_parquet(files_[file])) {
      index_parquet(file, bad);
    } else {
      index_lines(file, file_extension(files_[file].location) == ".jsonl");
    }
  }
  for (const Unit& unit : units_) {
    documents_ += unit.documents;
    bytes_ += unit.bytes;
  }
  make_manifest();
  if (documents_ == 0) {
    uint64_t size = 0;
    for (const SourceFile& file : files_) size += file.size;
    throw usage_error(fmt::format("{} holds no documents ({} file{}, {})", source_, files_.size(),
                                  files_.size() == 1 ? "" : "s", bytes_text(static_cast<double>(size))),
                      files_skipped_ > 0 ? "its damaged files were left out" : "give a source with text in it");
  }
  if (options.validation_documents > 0 && options.validation_source.empty()) {
    find_training_begin(options.validation_documents, bad);
  }
}

Corpus::~Corpus() = default;

void Corpus::index_lines(uint32_t file, bool jsonl) {
  const auto source = open(file);
  const uint64_t begin = text_begin(*source);
  LineReader lines(source, begin, source->size(), max_document_bytes_);
  LineReader::Line line;
  Unit unit{.file = file, .range = {begin, begin}, .first_line = 1};
  const auto close = [&](uint64_t end, int64_t next_line) {
    unit.range.end = end;
    unit.bytes = end - unit.range.begin;
    if (unit.documents > 0) units_.push_back(unit);
    unit.range.begin = end;
    unit.first_line = next_line;
    unit.documents = 0;
  };
  bool inside = false;  // a text document
  bool first = true;
  for (int64_t number = 1; lines.next(line); ++number) {
    const bool blank = !line.too_long && is_blank(line.text);
    const bool starts = !blank && (jsonl || !inside);
    inside = !blank;
    if (!starts) continue;
    if (jsonl && first) check_column(line.text, column_, source->name());
    first = false;
    if (unit.documents == documents_per_unit) close(line.offset, number);
    ++unit.documents;
  }
  close(source->size(), 0);
}

void Corpus::index_parquet(uint32_t file, BadData& bad) {
  try {
    const auto parquet = open_parquet(file);
    const auto& groups = parquet->row_groups();
    for (uint32_t g = 0; g < groups.size(); ++g) {
      units_.push_back({.file = file,
                        .row_group = g,
                        .range = {},
                        .first_line = 0,
                        .documents = groups[g].rows,
                        .bytes = groups[g].bytes});
    }
  } catch (const DamagedFile& damage) {
    ++files_skipped_;
    bad.report(damage.what());
  }
}

void Corpus::find_training_begin(int64_t held_out, BadData& bad) {
  int64_t found = 0;
  Entry entry;
  for (int64_t g = 0; g < static_cast<int64_t>(units_.size()); ++g) {
    const auto reader = read(g);
    for (int64_t document = 0; reader->next(entry); ++document) {
      if (entry.kind == Entry::Kind::damaged) bad.report(entry.problem);
      if (entry.kind != Entry::Kind::text || ++found < held_out) continue;
      training_begin_ = {g, document + 1};
      return;
    }
  }
  throw usage_error(fmt::format("{} has {} documents with text; {} cannot be held out of them", source_,
                                with_commas(found), with_commas(held_out)),
                    "lower data.validation_documents");
}

void Corpus::make_manifest() {
  struct Counts {
    int64_t units = 0;
    int64_t documents = 0;
  };
  std::vector<Counts> counts(files_.size());
  for (const Unit& unit : units_) {
    ++counts[unit.file].units;
    counts[unit.file].documents += unit.documents;
  }
  std::string text;
  uint64_t size = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    text += fmt::format("{}\n{} {} {}\n", files_[i].name, files_[i].size, counts[i].units, counts[i].documents);
    size += files_[i].size;
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  manifest_ = Json{{"files", files_.size()},
                   {"bytes", size},
                   {"units", units_.size()},
                   {"hash", fmt::format("{:016x}{:016x}", hash.high64, hash.low64)}};
}

std::shared_ptr<const ByteSource> Corpus::open(uint32_t file) const {
  const std::lock_guard lock(mutex_);
  auto source = open_files_[file].lock();
  if (!source) {
    source = storage_->open(files_[file]);
    open_files_[file] = source;
  }
  last_file_ = source;
  return source;
}

std::shared_ptr<const ParquetFile> Corpus::open_parquet(uint32_t file) const {
  const auto source = open(file);
  const std::lock_guard lock(mutex_);
  auto parquet = open_parquets_[file].lock();
  if (!parquet) {
    parquet = std::make_shared<ParquetFile>(source, column_);
    open_parquets_[file] = parquet;
  }
  last_parquet_ = parquet;
  return parquet;
}

std::unique_ptr<UnitReader> Corpus::read(int64_t g) const {
  const Unit& unit = units_.at(static_cast<size_t>(g));
  const SourceFile& file = files_[unit.file];
  if (is_parquet(file)) {
    const auto parquet = open_parquet(unit.file);
    if (unit.row_group >= parquet->row_groups().size() ||
        parquet->row_groups()[unit.row_group].rows != unit.documents) {
      throw failure(fmt::format("{} changed while it was in use", file.location),
                    "leave the data alone while it is read");
    }
    // The reader holds what it needs of the file.
    return parquet->read(unit.row_group, max_document_bytes_);
  }
  if (file_extension(file.location) == ".jsonl") {
    return read_jsonl(open(unit.file), unit.range, unit.first_line, column_, max_document_bytes_);
  }
  return read_text(open(unit.file), unit.range, unit.first_line, max_document_bytes_);
}

}  // namespace mythos
