// Lines of a part of a file, in bounded memory.
#pragma once

#include "storage/byte_source.h"

#include <string_view>

namespace mythos {

class LineReader {
 public:
  struct Line {
    std::string_view text;  ///< without its line end (LF or CR LF); valid until the next call; "" if too long
    uint64_t offset = 0;    ///< of its first byte in the file
    uint64_t bytes = 0;     ///< its length without the LF
    bool too_long = false;  ///< longer than the limit
  };

  /// Reads the bytes [begin, end). A line above `max_line` bytes is passed over without being kept in memory.
  LineReader(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end, uint64_t max_line);

  /// False after the last line. A file's end without a line end still ends a line.
  bool next(Line& line);

 private:
  void refill();

  std::shared_ptr<const ByteSource> source_;
  uint64_t next_offset_;  // of the first byte not yet in the buffer
  uint64_t end_;
  uint64_t max_line_;
  std::vector<char> buffer_;
  size_t position_ = 0;  // what is before it was handed out
  size_t filled_ = 0;
};

/// Only blanks, tabs, CR and their like.
bool is_blank(std::string_view line);

/// Where the text of a file begins: behind a UTF-8 byte order mark if there is one.
uint64_t text_begin(const ByteSource& source);

}  // namespace mythos
