// Lines of a stream, in bounded memory.
#pragma once

#include "storage/byte_source.h"
#include "storage/decompress.h"

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct Line {
  std::string_view text;  ///< without its line end (LF or CR LF); valid until the next call; "" if too long
  uint64_t offset = 0;    ///< of its first byte in the text
  uint64_t bytes = 0;     ///< its length without the LF
  bool too_long = false;  ///< longer than the limit
};

class Lines {
 public:
  virtual ~Lines() = default;
  Lines() = default;
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  /// False after the last line. An end without a line end still ends a line.
  virtual bool next(Line& line) = 0;
};

/// Of a stream whose first byte has the offset `begin`. A line above `max_line` bytes is passed over without being kept
/// in memory.
class LineReader : public Lines {
 public:
  LineReader(std::unique_ptr<ByteStream> stream, uint64_t begin, uint64_t max_line, std::stop_token stop = {});

  bool next(Line& line) override;
  /// From now on.
  void set_stop(std::stop_token stop) { stop_ = std::move(stop); }
  /// The offset of the next line.
  [[nodiscard]] uint64_t offset() const { return next_offset_ - (filled_ - position_); }

 private:
  void refill();

  std::unique_ptr<ByteStream> stream_;
  uint64_t next_offset_;  // of the first byte not yet in the buffer
  uint64_t max_line_;
  std::stop_token stop_;
  bool at_end_ = false;
  std::vector<char> buffer_;
  size_t position_ = 0;  // what is before it was handed out
  size_t filled_ = 0;
};

/// Lines kept in memory.
class StoredLines : public Lines {
 public:
  struct Store {
    struct Entry {
      size_t begin = 0, size = 0;  // in `text`
      uint64_t offset = 0, bytes = 0;
      bool too_long = false;
      uint64_t blank = 0;  // so many blank lines in a row, nothing else
    };
    std::string text;
    std::vector<Entry> lines;

    void add(const Line& line);
    [[nodiscard]] size_t memory() const { return text.size() + lines.size() * sizeof(Entry); }
  };
  explicit StoredLines(std::shared_ptr<const Store> store) : store_(std::move(store)) {}
  bool next(Line& line) override;

 private:
  std::shared_ptr<const Store> store_;
  size_t next_ = 0;
  uint64_t blanks_ = 0;  // given of the entry that is next
};

/// The bytes [begin, end) of a source.
std::unique_ptr<ByteStream> stream_of(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end);

/// Only blanks, tabs, CR and their like.
bool is_blank(std::string_view line);

}  // namespace mythos
