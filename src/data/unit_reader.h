// One unit of reading, document by document: a Parquet row group, or 1,000 documents of a text or JSONL file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mythos {

/// One document of a unit, or one place where a document should be.
struct Entry {
  enum class Kind {
    text,     ///< `text` has at least one byte
    tokens,   ///< prepared: `ids` has at least one id
    empty,    ///< a null or an empty text
    damaged,  ///< `problem` says what and where
  };
  Kind kind = Kind::empty;
  std::string_view text;         ///< valid until the reader's next call, like `ids`
  std::span<const int32_t> ids;  ///< what the text encodes to
  int64_t text_bytes = 0;        ///< of a prepared document: the bytes of its text
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

}  // namespace mythos
