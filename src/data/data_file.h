// One file of a source as a row of reading units, found only as far as somebody asks.
#pragma once

#include "base/json.h"
#include "data/options.h"
#include "data/unit_reader.h"
#include "storage/byte_source.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>

namespace mythos {

/// Documents of a text or JSONL file that make a unit.
constexpr int64_t documents_per_unit = 1000;

/// A file that is not what it should be. Callers decide whether that stops or is passed over.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct UnitInfo {
  int64_t documents = 0;  ///< null, empty and damaged ones included
  uint64_t bytes = 0;     ///< as stored; of a compressed file: of its text
};

/// Thread-safe. Everything may throw Error where bytes cannot be had, Stopped where `stop` asks for it, and
/// DamagedFile.
class DataFile {
 public:
  virtual ~DataFile() = default;
  DataFile() = default;
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  /// Whether the file has a unit number `part` (from 0).
  virtual bool has(int64_t part, std::stop_token stop) = 0;
  /// How many units it has; looks at the whole file if that is not known.
  virtual int64_t count(std::stop_token stop) = 0;
  /// Of a unit it has.
  virtual UnitInfo info(int64_t part, std::stop_token stop) = 0;
  /// Opens a unit it has at the first document. What is remote may be fetched in the background from here on.
  virtual std::unique_ptr<UnitReader> read(int64_t part, std::stop_token stop) = 0;

  /// Lets go of what can be had again: called when other files are being read.
  virtual void release() {}

  /// Whether opening a unit early lets it be fetched while another one is read.
  [[nodiscard]] virtual bool fetches_early(int64_t /*part*/) const { return false; }
  /// Whether units can only be read one after the other: anything else reads the file again from its begin.
  [[nodiscard]] virtual bool in_order_only() const { return false; }

  /// What find() needs to go on at a unit without reading what is before it; null where nothing is needed.
  [[nodiscard]] virtual Json bookmark(int64_t /*part*/) const { return nullptr; }
  /// Uses what bookmark(part) gave earlier.
  virtual void find(int64_t /*part*/, const Json& /*bookmark*/) {}
};

/// What a file of text needs to know to be read as documents.
struct LineFormat {
  bool jsonl = false;
  std::string column;  ///< of JSONL
  uint64_t max_document_bytes = 0;
};

/// A Parquet file: a unit is a row group. Throws as ParquetFile does.
std::unique_ptr<DataFile> open_parquet_units(std::function<std::shared_ptr<const ByteSource>()> open,
                                             std::string column, uint64_t max_document_bytes);
/// A text or JSONL file, compressed or not.
std::unique_ptr<DataFile> open_line_units(const std::string& location,
                                          std::function<std::shared_ptr<const ByteSource>()> open, LineFormat format);

}  // namespace mythos
