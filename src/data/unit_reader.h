// One unit of reading, document by document: a Parquet row group, or 1,000 documents of a text or JSONL file.
#pragma once

#include "storage/byte_source.h"

#include <memory>
#include <string>
#include <string_view>

namespace mythos {

/// One document of a unit, or one place where a document should be.
struct Entry {
  enum class Kind {
    text,     ///< `text` has at least one byte
    empty,    ///< a null or an empty text
    damaged,  ///< `problem` says what and where
  };
  Kind kind = Kind::empty;
  std::string_view text;  ///< valid until the reader's next call
  std::string problem;
  int64_t count = 1;  ///< the documents this stands for: more than 1 where the rest of a row group is lost
};

class UnitReader {
 public:
  virtual ~UnitReader() = default;
  UnitReader() = default;
  UnitReader(const UnitReader&) = delete;
  UnitReader& operator=(const UnitReader&) = delete;

  /// False at the end of the unit. Bad data is an entry; what cannot be read at all (a vanished mount) throws Error.
  virtual bool next(Entry& entry) = 0;
  /// Passes over the next `count` entries, cheaper than reading them; stops early only at the end of the unit.
  virtual void skip(int64_t count);
};

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Text: documents are runs of lines between blank lines. Lines are joined with LF; the last has none.
std::unique_ptr<UnitReader> read_text(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line,
                                      uint64_t max_document_bytes);
/// JSONL: one object per line; blank lines do not count.
std::unique_ptr<UnitReader> read_jsonl(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line,
                                       std::string column, uint64_t max_document_bytes);

}  // namespace mythos
