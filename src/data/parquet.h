// The text column of a Parquet file, row group by row group, in bounded memory.
#pragma once

#include "data/unit_reader.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mythos {

/// A file that is not what a Parquet file should be. Callers decide whether that stops or is passed over.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An opened Parquet file: its footer, read and checked once. Immutable; readers may run in several threads.
class ParquetFile {
 public:
  struct RowGroup {
    int64_t rows = 0;
    uint64_t bytes = 0;  ///< of the text column as stored
  };

  /// Throws DamagedFile if the footer cannot be read or contradicts itself, a usage error if there is no such column or
  /// it holds no text, Error if the bytes cannot be read.
  ParquetFile(std::shared_ptr<const ByteSource> source, const std::string& column);
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  [[nodiscard]] const std::vector<RowGroup>& row_groups() const { return row_groups_; }
  /// Reads one row group page by page. A row group that breaks in the middle gives the documents before the break, then
  /// one damaged entry that counts for the rest; rows that are missing or too many against the footer are a break too.
  [[nodiscard]] std::unique_ptr<UnitReader> read(size_t row_group, uint64_t max_document_bytes) const;

 private:
  struct Footer;

  std::shared_ptr<const ByteSource> source_;
  std::unique_ptr<Footer> footer_;
  std::vector<RowGroup> row_groups_;
};

}  // namespace mythos
