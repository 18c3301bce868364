#include "data/json_line.h"
#include "data/line_reader.h"
#include "data/unit_reader.h"

#include <fmt/format.h>

#include <utility>

namespace mythos {
namespace {

std::string too_long(uint64_t bytes, uint64_t limit) {
  return fmt::format("a document of {} bytes, more than the {} that one may have", bytes, limit);
}

class TextUnit : public UnitReader {
 public:
  TextUnit(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line, uint64_t limit)
      : name_(source->name()),
        lines_(std::move(source), range.begin, range.end, limit),
        line_(first_line),
        limit_(limit) {}

  bool next(Entry& entry) override {
    document_.clear();
    uint64_t bytes = 0;
    int64_t first_line = 0;
    LineReader::Line line;
    while (lines_.next(line)) {
      const int64_t number = line_++;
      if (!line.too_long && is_blank(line.text)) {
        if (first_line != 0) break;
        continue;
      }
      if (first_line == 0) {
        first_line = number;
      } else if (bytes <= limit_) {
        document_ += '\n';
      }
      bytes += line.bytes + 1;
      if (bytes <= limit_ + 1) {
        document_ += line.text;
      } else {
        document_ = std::string();
      }
    }
    if (first_line == 0) return false;
    entry.count = 1;
    if (bytes > limit_ + 1) {
      entry.kind = Entry::Kind::damaged;
      entry.problem = fmt::format("{}, line {}: {}", name_, first_line, too_long(bytes - 1, limit_));
    } else {
      entry.kind = Entry::Kind::text;
      entry.text = document_;
    }
    return true;
  }

 private:
  std::string name_;
  LineReader lines_;
  int64_t line_;
  uint64_t limit_;
  std::string document_;
};

class JsonlUnit : public UnitReader {
 public:
  JsonlUnit(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line, std::string column,
            uint64_t limit)
      : name_(source->name()),
        lines_(std::move(source), range.begin, range.end, limit),
        line_(first_line),
        column_(std::move(column)),
        limit_(limit) {}

  bool next(Entry& entry) override {
    LineReader::Line line;
    if (!next_line(line)) return false;
    entry.count = 1;
    entry.kind = Entry::Kind::damaged;
    if (line.too_long) {
      entry.problem = place() + too_long(line.bytes, limit_);
      return true;
    }
    switch (json_.find(line.text, column_)) {
      case JsonLine::Result::text:
        entry.text = json_.text();
        entry.kind = entry.text.empty() ? Entry::Kind::empty : Entry::Kind::text;
        break;
      case JsonLine::Result::null:
        entry.kind = Entry::Kind::empty;
        break;
      case JsonLine::Result::missing:
        entry.problem = fmt::format("{}no column '{}'", place(), column_);
        break;
      case JsonLine::Result::damaged:
        entry.problem = place() + json_.why();
        break;
    }
    return true;
  }

  void skip(int64_t count) override {
    LineReader::Line line;
    while (count > 0 && next_line(line)) --count;
  }

 private:
  bool next_line(LineReader::Line& line) {
    while (lines_.next(line)) {
      ++line_;
      if (line.too_long || !is_blank(line.text)) return true;
    }
    return false;
  }
  [[nodiscard]] std::string place() const { return fmt::format("{}, line {}: ", name_, line_ - 1); }

  std::string name_;
  LineReader lines_;
  int64_t line_;
  std::string column_;
  uint64_t limit_;
  JsonLine json_;
};

}  // namespace

void UnitReader::skip(int64_t count) {
  Entry entry;
  while (count > 0 && next(entry)) count -= entry.count;
}

std::unique_ptr<UnitReader> read_text(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line,
                                      uint64_t max_document_bytes) {
  return std::make_unique<TextUnit>(std::move(source), range, first_line, max_document_bytes);
}

std::unique_ptr<UnitReader> read_jsonl(std::shared_ptr<const ByteSource> source, ByteRange range, int64_t first_line,
                                       std::string column, uint64_t max_document_bytes) {
  return std::make_unique<JsonlUnit>(std::move(source), range, first_line, std::move(column), max_document_bytes);
}

}  // namespace mythos
