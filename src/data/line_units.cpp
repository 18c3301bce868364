// Text and JSONL files as units of 1,000 documents.
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "data/data_file.h"
#include "data/json_line.h"
#include "data/line_documents.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

namespace mythos {
namespace {

// Units that were passed and that nobody asked for yet take at most so much memory.
constexpr size_t max_kept_bytes = size_t{256} << 20;
// A larger unit is never held as a whole: it is read line by line from a stream of its own.
constexpr uint64_t max_held_bytes = uint64_t{64} << 20;

// The lines of a stream before an offset.
class LinesUntil : public Lines {
 public:
  LinesUntil(std::unique_ptr<LineReader> reader, uint64_t end) : reader_(std::move(reader)), end_(end) {}

  bool next(Line& line) override {
    if (ended_) return false;
    try {
      ended_ = !reader_->next(line) || line.offset >= end_;
    } catch (const DamagedStream&) {
      ended_ = true;  // what ends the unit is known
    }
    return !ended_;
  }

 private:
  std::unique_ptr<LineReader> reader_;
  uint64_t end_;
  bool ended_ = false;
};

// Where units begin is found by going through the file once, as far as somebody asks. A local file that is not
// compressed is then read anew where a unit lies. From others a unit's lines are kept in memory while going through, so
// that the file is read once where units are asked for nearly in order, as lanes do.
class LineUnits : public DataFile {
 public:
  LineUnits(const std::string& location, std::function<std::shared_ptr<const ByteSource>()> open, LineFormat format)
      : open_(std::move(open)), codec_(codec_of(location)), format_(std::move(format)) {}

  bool has(int64_t part, std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    return has_part(part, stop);
  }

  int64_t count(std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    while (!complete_) scan_unit(stop);
    return end_part();
  }

  UnitInfo info(int64_t part, std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    const Part& p = part_at(part, stop);
    return {p.documents, p.bytes};
  }

  std::unique_ptr<UnitReader> read(int64_t part, std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    const Part p = part_at(part, stop);
    std::unique_ptr<Lines> lines;
    if (auto store = take(part)) {
      lines = std::make_unique<StoredLines>(std::move(store));
    } else if (codec_ == Codec::none) {
      lines =
          std::make_unique<LineReader>(stream_of(read_ahead(source(), p.offset, p.bytes), p.offset, p.offset + p.bytes),
                                       p.offset, format_.max_document_bytes, stop);
    } else if (p.large) {
      lines = std::make_unique<LinesUntil>(lines_from(p.offset, stop), p.offset + p.bytes);
    } else {
      lines = std::make_unique<StoredLines>(replay(part, stop));
    }
    return read_documents(std::move(lines), name_, p.first_line, format_, p.problem);
  }

  [[nodiscard]] bool in_order_only() const override { return codec_ != Codec::none; }

  [[nodiscard]] Json bookmark(int64_t part) const override {
    const std::lock_guard lock(mutex_);
    if (part < base_ || part > end_part() || (part == end_part() && complete_)) return nullptr;
    const Part& p = part == end_part() ? open_part_ : parts_[static_cast<size_t>(part - base_)];
    return {{"offset", p.offset}, {"line", p.first_line}};
  }

  void find(int64_t part, const Json& bookmark) override {
    const std::lock_guard lock(mutex_);
    if (!bookmark.is_object() || complete_ || end_part() > 0) return;
    begin_at(part, bookmark.value("offset", uint64_t{0}), bookmark.value("line", int64_t{1}));
  }

 private:
  struct Part {
    uint64_t offset = 0;
    int64_t first_line = 1;
    int64_t documents = 0;
    uint64_t bytes = 0;
    bool large = false;   // more than is held in memory
    std::string problem;  // what ends the file here
  };

  [[nodiscard]] int64_t end_part() const { return base_ + static_cast<int64_t>(parts_.size()); }

  // Open as long as somebody reads it.
  std::shared_ptr<const ByteSource> source() {
    auto file = source_.lock();
    if (!file) {
      source_ = file = open_();
      name_ = file->name();
      streamed_ = codec_ != Codec::none || file->is_remote();
    }
    return file;
  }

  void begin_at(int64_t part, uint64_t offset, int64_t line) {
    base_ = part;
    parts_.clear();
    complete_ = false;
    restart(offset, line);
  }

  // Going through the file goes on at a place where a unit begins.
  void restart(uint64_t offset, int64_t line) {
    reader_.reset();
    restart_part(offset, line);
  }

  // The text of the file from `offset` on.
  std::unique_ptr<LineReader> lines_from(uint64_t offset, const std::stop_token& stop) {
    const auto file = source();
    if (codec_ == Codec::none) {
      return std::make_unique<LineReader>(
          stream_of(read_ahead(file, offset, file->size() - std::min(offset, file->size())), offset, file->size()),
          offset, format_.max_document_bytes, stop);
    }
    auto stream = decompressed(file, codec_);
    std::vector<std::byte> passed(std::min<uint64_t>(offset, uint64_t{1} << 20));
    for (uint64_t at = 0; at < offset;) {
      const size_t n = stream->read(std::span(passed).first(std::min<uint64_t>(passed.size(), offset - at)), stop);
      if (n == 0) {
        throw failure(fmt::format("{} has less text than before: {} bytes", file->name(), at),
                      "leave the data alone while it is read");
      }
      at += n;
    }
    return std::make_unique<LineReader>(std::move(stream), offset, format_.max_document_bytes, stop);
  }

  bool has_part(int64_t part, const std::stop_token& stop) {
    if (part < base_) {
      if (part < 0) return false;
      begin_at(0, 0, 1);
    }
    while (part >= end_part() && !complete_) scan_unit(stop);
    return part < end_part();
  }

  Part part_at(int64_t part, const std::stop_token& stop) {
    if (!has_part(part, stop)) {
      throw failure(fmt::format("{} has no unit {} any more", name_, part), "leave the data alone while it is read");
    }
    return parts_[static_cast<size_t>(part - base_)];
  }

  // Goes through the file up to the end of one more unit.
  void scan_unit(const std::stop_token& stop) {
    const Part begin = open_part_;
    try {
      if (!reader_) {
        inside_ = false;
        next_line_ = open_part_.first_line;
        reader_ = lines_from(open_part_.offset, stop);
      }
      reader_->set_stop(stop);
      Line line;
      while (reader_->next(line)) {
        const int64_t number = next_line_++;
        const bool blank = !line.too_long && is_blank(line.text);
        const bool starts = !blank && (format_.jsonl || !inside_);
        inside_ = !blank;
        bool closed = false;
        if (starts) {
          check_column(line);
          if (open_part_.documents == documents_per_unit) {
            close(line.offset, "");
            restart_part(line.offset, number);
            closed = true;
          }
          ++open_part_.documents;
          document_begin_ = {line.offset, open_store_->lines.size(), open_store_->text.size()};
        }
        if (streamed_) hold(line);
        if (closed) return;
      }
      finish(reader_->offset(), "");
    } catch (const DamagedStream& damage) {
      // What was read before the break is good, but for a document that it cut in two.
      uint64_t end = reader_ ? reader_->offset() : 0;
      if (!format_.jsonl && inside_ && open_part_.documents > 0) {
        --open_part_.documents;
        end = document_begin_.offset;
        if (!too_large_) {
          open_store_->lines.resize(document_begin_.line);
          open_store_->text.resize(document_begin_.byte);
        }
      }
      ++open_part_.documents;
      finish(end, damage.what());
    } catch (...) {
      // The reader may have been in the middle of a line: the unit is begun anew at the next try.
      restart(begin.offset, begin.first_line);
      throw;
    }
  }

  void finish(uint64_t end, const std::string& problem) {
    if (open_part_.documents > 0) close(end, problem);
    complete_ = true;
    reader_.reset();
  }

  void restart_part(uint64_t offset, int64_t line) {
    open_part_ = {.offset = offset, .first_line = line, .documents = 0, .bytes = 0, .large = false, .problem = ""};
    open_store_ = std::make_shared<StoredLines::Store>();
    too_large_ = false;
  }

  void hold(const Line& line) {
    if (too_large_) return;
    open_store_->add(line);
    if (open_store_->memory() <= max_held_bytes) return;
    open_store_ = std::make_shared<StoredLines::Store>();
    too_large_ = true;
  }

  void close(uint64_t end, const std::string& problem) {
    open_part_.bytes = end - open_part_.offset;
    open_part_.problem = problem;
    open_part_.large = too_large_;
    parts_.push_back(open_part_);
    if (streamed_ && !too_large_) keep(end_part() - 1, std::move(open_store_));
  }

  // A file of objects without the column is a wrong setting or another file, not so many bad lines.
  void check_column(const Line& line) {
    if (!format_.jsonl || checked_ || line.too_long) return;
    checked_ = true;
    JsonLine json;
    std::vector<std::string> keys;
    if (json.find(line.text, format_.column, &keys) == JsonLine::Result::missing) {
      throw usage_error(fmt::format("{} has no column '{}'", name_, format_.column), suggestion(format_.column, keys));
    }
  }

  void keep(int64_t part, std::shared_ptr<StoredLines::Store> store) {
    if (std::ranges::find(kept_, part, &Kept::part) != kept_.end()) return;
    kept_bytes_ += store->memory();
    kept_.push_back({part, std::move(store)});
    while (kept_bytes_ > max_kept_bytes && kept_.size() > 1) {
      kept_bytes_ -= kept_.front().store->memory();
      kept_.pop_front();
    }
  }

  std::shared_ptr<const StoredLines::Store> take(int64_t part) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->part != part) continue;
      const auto store = std::move(it->store);
      kept_bytes_ -= store->memory();
      kept_.erase(it);
      return store;
    }
    return nullptr;
  }

  // A unit of a compressed file that was passed before: the file is gone through again, from its begin or from where
  // an earlier replay stands.
  std::shared_ptr<const StoredLines::Store> replay(int64_t part, const std::stop_token& stop) {
    if (!replay_ || part < replay_part_) {
      replay_.reset();
      replay_part_ = base_;
      if (base_ > 0 || part > 0) log::info("{} is decompressed again from its begin", name_);
      replay_ = lines_from(parts_.front().offset, stop);
      replay_line_.reset();
    }
    try {
      replay_->set_stop(stop);
      for (;; ++replay_part_) {
        auto store = std::make_shared<StoredLines::Store>();
        const Part& p = parts_[static_cast<size_t>(replay_part_ - base_)];
        const bool held = !p.large;
        if (replay_line_) {
          if (held) store->add(*replay_line_);
          replay_line_.reset();
        }
        Line line;
        try {
          while (replay_->next(line)) {
            if (line.offset >= p.offset + p.bytes) {
              replay_text_ = line.text;
              replay_line_ = line;
              replay_line_->text = replay_text_;
              break;
            }
            if (held) store->add(line);
          }
        } catch (const DamagedStream&) {
          if (p.problem.empty()) throw;  // it was whole before
        }
        if (replay_part_ == part) {
          ++replay_part_;
          if (part + 1 == end_part()) replay_.reset();
          return store;
        }
        if (held) keep(replay_part_, std::move(store));
      }
    } catch (const DamagedStream& damage) {
      replay_.reset();
      throw failure(fmt::format("{} could be read before and cannot now: {}", name_, damage.what()));
    } catch (...) {
      replay_.reset();
      throw;
    }
  }

  struct Place {
    uint64_t offset = 0;
    size_t line = 0, byte = 0;  // in the store
  };
  struct Kept {
    int64_t part = 0;
    std::shared_ptr<StoredLines::Store> store;
  };

  mutable std::mutex mutex_;
  std::function<std::shared_ptr<const ByteSource>()> open_;
  Codec codec_;
  LineFormat format_;
  std::weak_ptr<const ByteSource> source_;
  std::string name_;
  bool streamed_ = false;

  int64_t base_ = 0;  // the first unit in parts_
  std::vector<Part> parts_;
  bool complete_ = false;
  // Going through the file.
  std::unique_ptr<LineReader> reader_;
  Part open_part_;
  std::shared_ptr<StoredLines::Store> open_store_ = std::make_shared<StoredLines::Store>();
  bool too_large_ = false;  // the unit that is open is not held
  int64_t next_line_ = 1;
  bool inside_ = false;  // a text document
  Place document_begin_;
  bool checked_ = false;

  std::list<Kept> kept_;
  size_t kept_bytes_ = 0;
  std::unique_ptr<LineReader> replay_;
  int64_t replay_part_ = 0;
  std::optional<Line> replay_line_;
  std::string replay_text_;
};

}  // namespace

std::unique_ptr<DataFile> open_line_units(const std::string& location,
                                          std::function<std::shared_ptr<const ByteSource>()> open, LineFormat format) {
  return std::make_unique<LineUnits>(location, std::move(open), std::move(format));
}

}  // namespace mythos
