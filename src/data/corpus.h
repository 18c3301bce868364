// A source as a numbered sequence of reading units: the base of everything that reads data.
#pragma once

#include "base/json.h"
#include "data/options.h"
#include "data/unit_reader.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mythos {

class ParquetFile;

/// Documents of a text or JSONL file that make a unit.
constexpr int64_t documents_per_unit = 1000;

/// Counts bad data and reports it: throws with OnBadData::stop; with skip, writes the first 20 places to the log and
/// counts the others. Thread-safe.
class BadData {
 public:
  explicit BadData(OnBadData policy, bool quiet = false) : policy_(policy), quiet_(quiet) {}
  void report(const std::string& problem);

 private:
  OnBadData policy_;
  bool quiet_;
  std::mutex mutex_;
  int64_t reported_ = 0;
};

/// The indexed source. Immutable; units can be read from several threads at once.
class Corpus {
 public:
  struct Unit {
    uint32_t file = 0;
    uint32_t row_group = 0;  ///< of a Parquet file
    ByteRange range;         ///< of a text or JSONL file
    int64_t first_line = 0;
    int64_t documents = 0;  ///< null, empty and damaged ones included
    uint64_t bytes = 0;     ///< as stored
  };
  /// A document by its place: unit, and index inside it.
  struct Place {
    int64_t unit = 0;
    int64_t document = 0;
  };

  /// Lists the files of options.source and indexes them: footers of Parquet files; text and JSONL files are read once.
  /// Finds the end of the held-out part (validation_documents without validation_source). Throws usage errors for what
  /// cannot be a source (see Storage::list), a missing column, an empty corpus, or fewer documents than are held out. A
  /// damaged Parquet footer is bad data: the file is left out, or that is an Error.
  explicit Corpus(const DataOptions& options);
  ~Corpus();

  [[nodiscard]] const std::vector<SourceFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
  [[nodiscard]] int64_t documents() const { return documents_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }  ///< of the units as stored
  [[nodiscard]] int64_t files_skipped() const { return files_skipped_; }
  /// The first document that is not held out; {0, 0} if none is held out.
  [[nodiscard]] Place training_begin() const { return training_begin_; }
  /// Opens unit `g` at its first document.
  [[nodiscard]] std::unique_ptr<UnitReader> read(int64_t g) const;
  /// What it is made of, to be compared with a saved position: {"files", "bytes", "units", "hash"}; the hash covers
  /// names, sizes and numbers of units and documents of all files.
  [[nodiscard]] const Json& manifest() const { return manifest_; }

 private:
  void index_lines(uint32_t file, bool jsonl);
  void index_parquet(uint32_t file, BadData& bad);
  void find_training_begin(int64_t held_out, BadData& bad);
  void make_manifest();
  [[nodiscard]] std::shared_ptr<const ByteSource> open(uint32_t file) const;
  [[nodiscard]] std::shared_ptr<const ParquetFile> open_parquet(uint32_t file) const;

  std::shared_ptr<Storage> storage_;
  std::string source_;
  std::string column_;
  uint64_t max_document_bytes_;
  std::vector<SourceFile> files_;
  std::vector<Unit> units_;
  int64_t documents_ = 0;
  uint64_t bytes_ = 0;
  int64_t files_skipped_ = 0;
  Place training_begin_;
  Json manifest_;

  // Open files are shared while somebody reads them; the one opened last stays open.
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<const ByteSource>> open_files_;
  mutable std::vector<std::weak_ptr<const ParquetFile>> open_parquets_;
  mutable std::shared_ptr<const ByteSource> last_file_;
  mutable std::shared_ptr<const ParquetFile> last_parquet_;
};

}  // namespace mythos
