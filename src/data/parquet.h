// The text column of a Parquet file, row group by row group, in bounded memory.
#pragma once

#include "data/data_file.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mythos {

/// An opened Parquet file: its footer, read and checked once. Immutable; readers may run in several threads.
class ParquetFile : public std::enable_shared_from_this<ParquetFile> {
 public:
  struct RowGroup {
    int64_t rows = 0;
    uint64_t offset = 0, bytes = 0;  ///< of the text column as stored
  };

  /// Throws DamagedFile if the footer cannot be read or contradicts itself, a usage error if there is no such column or
  /// it holds no text, Error if the bytes cannot be read.
  ParquetFile(std::shared_ptr<const ByteSource> source, const std::string& column, const std::stop_token& stop = {});
  ~ParquetFile();
  ParquetFile(const ParquetFile&) = delete;
  ParquetFile& operator=(const ParquetFile&) = delete;

  [[nodiscard]] const std::vector<RowGroup>& row_groups() const { return row_groups_; }
  /// Reads one row group page by page. A row group that breaks in the middle gives the documents before the break, then
  /// one damaged entry that counts for the rest; rows that are missing or too many against the footer are a break too.
  /// What is remote is fetched in the background from here on. The file, to be held by a shared_ptr, lives as long as
  /// the reader.
  [[nodiscard]] std::unique_ptr<UnitReader> read(size_t row_group, uint64_t max_document_bytes,
                                                 std::stop_token stop = {}) const;

 private:
  struct Footer;

  std::shared_ptr<const ByteSource> source_;
  std::unique_ptr<Footer> footer_;
  std::vector<RowGroup> row_groups_;
};

}  // namespace mythos
