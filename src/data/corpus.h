// A source as files of reading units: the base of everything that reads data.
#pragma once

#include "base/json.h"
#include "data/data_file.h"
#include "data/options.h"
#include "storage/byte_source.h"

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

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

/// The listed source. Files are looked into only when somebody asks for their units, so that a source of thousands of
/// files begins at once. Thread-safe; units can be read from several threads at once.
class Corpus {
 public:
  /// A document by its place: file, unit in the file, and index in the unit.
  struct Place {
    size_t file = 0;
    int64_t part = 0;
    int64_t document = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Totals {
    int64_t units = 0;
    int64_t documents = 0;  ///< null, empty and damaged ones included
    uint64_t bytes = 0;     ///< of the units as stored
  };

  /// Lists the files of options.sources and looks for the first document. Throws usage errors for what cannot be a
  /// source (see Storage::list), a missing column, an empty source.
  explicit Corpus(const DataOptions& options);
  ~Corpus();

  [[nodiscard]] const std::vector<SourceFile>& files() const { return files_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }                 ///< of all files
  [[nodiscard]] const std::string& name() const { return name_; }         ///< as it was given
  [[nodiscard]] int64_t files_skipped() const { return files_skipped_; }  ///< damaged ones met so far

  /// Units of a file; a damaged file is bad data (see BadData) and has none.
  [[nodiscard]] bool has(size_t file, int64_t part, const std::stop_token& stop = {}) const;
  [[nodiscard]] int64_t count(size_t file, const std::stop_token& stop = {}) const;
  [[nodiscard]] UnitInfo info(size_t file, int64_t part, const std::stop_token& stop = {}) const;
  /// Opens a unit at its first document.
  [[nodiscard]] std::unique_ptr<UnitReader> read(size_t file, int64_t part, const std::stop_token& stop = {}) const;
  /// The fingerprint of the tokenizer that prepared sources were made with; empty if there are none.
  [[nodiscard]] const std::string& tokenizer() const { return tokenizer_; }
  /// Of a file (see DataFile).
  [[nodiscard]] DataFile& file(size_t file) const { return *open_[file]; }

  /// Looks into all files (several at once where they are remote). `progress` gets the number of files done.
  [[nodiscard]] Totals totals(const std::function<void(size_t)>& progress = {}) const;

  /// The first document that is not held out; the first of all if none is. Reads the held-out documents the first time,
  /// and throws a usage error if there are fewer than are held out.
  [[nodiscard]] Place training_begin() const;
  void set_training_begin(const Place& place) const;
  /// The held-out documents with text in them; see validation_documents().
  [[nodiscard]] std::vector<std::string> held_out() const;

  /// The text of prepared ids.
  [[nodiscard]] std::string text_of(const Entry& entry) const;

  /// What it is made of, to be compared with a saved position: {"files", "bytes", "hash", "ends"}. The hash covers
  /// names and sizes of all files; "ends" the first and last bytes of those on this machine, null if none are.
  [[nodiscard]] const Json& manifest() const { return manifest_; }

 private:
  void open_files(const DataOptions& options);
  void open_prepared(const std::string& folder);
  void look_for_documents() const;
  void make_manifest();
  template <class Call>
  auto guarded(size_t file, Call&& call) const -> decltype(call());

  std::shared_ptr<Storage> storage_;
  std::string name_;
  std::string column_;
  int64_t n_held_out_;
  std::function<std::string(std::span<const int32_t>)> decode_;
  std::vector<SourceFile> files_;
  std::vector<std::unique_ptr<DataFile>> open_;
  std::vector<bool> prepared_;  // of each file
  std::string tokenizer_;
  uint64_t bytes_ = 0;
  Json manifest_;

  mutable BadData bad_;
  mutable std::atomic<int64_t> files_skipped_{0};
  mutable std::mutex mutex_;           // guards what follows
  mutable std::vector<char> state_;    // of each file: unknown, good, damaged
  mutable bool any_good_ = false;      // a file with the right column was met
  mutable std::deque<size_t> recent_;  // files used last
  mutable std::mutex begin_mutex_;
  mutable std::optional<Place> training_begin_;
};

}  // namespace mythos
