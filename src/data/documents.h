// Documents as text: for training a tokenizer, for validation, for a look at the data.
#pragma once

#include "data/corpus.h"
#include "data/loader.h"
#include "data/options.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mythos {

/// Reads the documents with text in them, in the order of the source.
class DocumentReader {
 public:
  /// `held_out`: also those that training does not see. Bad data is dealt with as `policy` says.
  DocumentReader(std::shared_ptr<const Corpus> corpus, OnBadData policy, bool held_out = true);

  /// False at the end. Bytes come as they are in the file: text is not checked or changed.
  bool next(std::string& text);

  [[nodiscard]] int64_t documents() const { return documents_; }  ///< handed out
  [[nodiscard]] int64_t entries() const { return entries_; }  ///< passed, null and empty ones and lost ones included
  [[nodiscard]] int64_t skipped() const { return skipped_; }  ///< bad ones left out
  /// Of Corpus::bytes(), for progress; inside a file an estimate.
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }

 private:
  std::shared_ptr<const Corpus> corpus_;
  BadData bad_;
  Corpus::Place at_;
  uint64_t bytes_before_ = 0;  // of files behind us
  uint64_t bytes_read_ = 0;
  std::unique_ptr<UnitReader> reader_;
  int64_t documents_ = 0;
  int64_t entries_ = 0;
  int64_t skipped_ = 0;
};

/// The held-out documents: the first validation_documents of `sources` with text in them (of several, each its share),
/// or those of validation_sources. None if neither is set. At most 1 GiB of text: more is refused.
std::vector<std::string> validation_documents(const Sources& sources, const DataOptions& options);

/// Documents packed as one lane does it; the last row is shorter (at least two ids), so that no document is lost.
std::vector<std::vector<int32_t>> pack(const std::vector<std::string>& documents, const Encoder& encoder,
                                       int64_t seq_len, bool document_separator);

}  // namespace mythos
