#include "data/line_documents.h"

#include "data/json_line.h"

#include <fmt/format.h>

#include <utility>

namespace mythos {
namespace {

std::string too_long(uint64_t bytes, uint64_t limit) {
  return fmt::format("a document of {} bytes, more than the {} that one may have", bytes, limit);
}

// What both forms share: where we are, and what ends a file that breaks.
class LineUnit : public UnitReader {
 protected:
  LineUnit(std::unique_ptr<Lines> lines, const std::string& name, int64_t first_line, uint64_t limit,
           const std::string& problem)
      : name_(name), lines_(std::move(lines)), line_(first_line), limit_(limit), problem_(problem) {}

  // Behind the last document.
  bool end(Entry& entry) {
    if (problem_.empty()) return false;
    entry.kind = Entry::Kind::damaged;
    entry.count = 1;
    entry.problem = std::exchange(problem_, "");
    return true;
  }

  std::string name_;
  std::unique_ptr<Lines> lines_;
  int64_t line_;
  uint64_t limit_;
  std::string problem_;
};

class TextUnit : public LineUnit {
 public:
  TextUnit(std::unique_ptr<Lines> lines, const std::string& name, int64_t first_line, const LineFormat& format,
           const std::string& problem)
      : LineUnit(std::move(lines), name, first_line, format.max_document_bytes, problem) {}

  bool next(Entry& entry) override {
    document_.clear();
    uint64_t bytes = 0;
    int64_t first_line = 0;
    Line line;
    while (lines_->next(line)) {
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
    if (first_line == 0) return end(entry);
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
  std::string document_;
};

class JsonlUnit : public LineUnit {
 public:
  JsonlUnit(std::unique_ptr<Lines> lines, const std::string& name, int64_t first_line, const LineFormat& format,
            const std::string& problem)
      : LineUnit(std::move(lines), name, first_line, format.max_document_bytes, problem), column_(format.column) {}

  bool next(Entry& entry) override {
    Line line;
    if (!next_line(line)) return end(entry);
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
    Line line;
    while (count > 0 && next_line(line)) --count;
    Entry entry;
    if (count > 0) end(entry);
  }

 private:
  bool next_line(Line& line) {
    while (lines_->next(line)) {
      ++line_;
      if (line.too_long || !is_blank(line.text)) return true;
    }
    return false;
  }
  [[nodiscard]] std::string place() const { return fmt::format("{}, line {}: ", name_, line_ - 1); }

  std::string column_;
  JsonLine json_;
};

}  // namespace

void UnitReader::skip(int64_t count) {
  Entry entry;
  while (count > 0 && next(entry)) count -= entry.count;
}

std::unique_ptr<UnitReader> read_documents(std::unique_ptr<Lines> lines, const std::string& name, int64_t first_line,
                                           const LineFormat& format, const std::string& problem) {
  if (format.jsonl) return std::make_unique<JsonlUnit>(std::move(lines), name, first_line, format, problem);
  return std::make_unique<TextUnit>(std::move(lines), name, first_line, format, problem);
}

}  // namespace mythos
