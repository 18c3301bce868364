#include "data/line_reader.h"

#include "base/signals.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mythos {
namespace {

constexpr size_t first_buffer = size_t{256} << 10;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // UTF-8's, at the begin of a file

class RangeStream : public ByteStream {
 public:
  RangeStream(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end)
      : source_(std::move(source)), at_(begin), end_(end) {}

  size_t read(std::span<std::byte> into, std::stop_token stop) override {
    const size_t n = std::min<uint64_t>(into.size(), end_ - at_);
    if (n > 0) source_->read_at(at_, into.first(n), std::move(stop));
    at_ += n;
    return n;
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  uint64_t at_;
  uint64_t end_;
};

}  // namespace

std::unique_ptr<ByteStream> stream_of(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end) {
  return std::make_unique<RangeStream>(std::move(source), begin, end);
}

LineReader::LineReader(std::unique_ptr<ByteStream> stream, uint64_t begin, uint64_t max_line, std::stop_token stop)
    : stream_(std::move(stream)), next_offset_(begin), max_line_(max_line), stop_(std::move(stop)) {}

void LineReader::refill() {
  if (position_ > 0 && filled_ > position_)
    std::memmove(buffer_.data(), buffer_.data() + position_, filled_ - position_);
  filled_ -= position_;
  position_ = 0;
  if (stop_requested()) throw Stopped("reading was stopped");
  if (filled_ == buffer_.size()) {
    // Never much more than the longest line that is kept.
    const size_t twice = buffer_.empty() ? first_buffer : buffer_.size() * 2;
    buffer_.resize(std::max(filled_ + first_buffer, std::min<size_t>(twice, max_line_ + 2 * first_buffer)));
  }
  const size_t n = stream_->read(std::as_writable_bytes(std::span(buffer_).subspan(filled_)), stop_);
  at_end_ = n == 0;
  next_offset_ += n;
  filled_ += n;
}

bool LineReader::next(Line& line) {
  const uint64_t start = offset();
  size_t scanned = 0;    // bytes behind position_ without a line end
  uint64_t dropped = 0;  // bytes of a line too long to keep
  for (;;) {
    const char* first = buffer_.data() + position_;
    const size_t fresh = filled_ - position_ - scanned;
    const void* found = fresh > 0 ? std::memchr(first + scanned, '\n', fresh) : nullptr;
    if (found != nullptr || at_end_) {
      const size_t n =
          found != nullptr ? static_cast<size_t>(static_cast<const char*>(found) - first) : scanned + fresh;
      if (found == nullptr && n == 0 && dropped == 0) return false;
      line.offset = start;
      line.bytes = dropped + n;
      line.too_long = line.bytes > max_line_;
      line.text = line.too_long ? std::string_view() : std::string_view(first, n);
      if (line.text.ends_with('\r')) line.text.remove_suffix(1);
      if (start == 0 && line.text.starts_with(byte_order_mark)) line.text.remove_prefix(byte_order_mark.size());
      position_ += n + (found != nullptr ? 1 : 0);
      return true;
    }
    scanned += fresh;
    if (dropped + scanned > max_line_) {
      dropped += scanned;
      position_ = filled_;
      scanned = 0;
    }
    refill();
  }
}

void StoredLines::Store::add(const Line& line) {
  if (!line.too_long && is_blank(line.text)) {
    if (lines.empty() || lines.back().blank == 0) lines.push_back({text.size(), 0, line.offset, 0, false, 0});
    ++lines.back().blank;
    return;
  }
  lines.push_back({text.size(), line.text.size(), line.offset, line.bytes, line.too_long, 0});
  text += line.text;
}

bool StoredLines::next(Line& line) {
  if (next_ == store_->lines.size()) return false;
  const Store::Entry& entry = store_->lines[next_];
  if (entry.blank > 0) {
    if (++blanks_ == entry.blank) {
      ++next_;
      blanks_ = 0;
    }
    line = {{}, entry.offset, 0, false};
    return true;
  }
  ++next_;
  line = {std::string_view(store_->text).substr(entry.begin, entry.size), entry.offset, entry.bytes, entry.too_long};
  return true;
}

bool is_blank(std::string_view line) {
  return std::ranges::all_of(line, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

}  // namespace mythos
