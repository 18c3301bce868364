#include "data/line_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace mythos {
namespace {

constexpr size_t first_buffer = size_t{256} << 10;

}  // namespace

LineReader::LineReader(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end, uint64_t max_line)
    : source_(std::move(source)), next_offset_(begin), end_(end), max_line_(max_line) {}

void LineReader::refill() {
  if (position_ > 0 && filled_ > position_)
    std::memmove(buffer_.data(), buffer_.data() + position_, filled_ - position_);
  filled_ -= position_;
  position_ = 0;
  const uint64_t left = end_ - next_offset_;
  if (filled_ == buffer_.size()) {
    buffer_.resize(buffer_.empty() ? std::min<uint64_t>(first_buffer, left) : buffer_.size() * 2);
  }
  const size_t n = std::min<uint64_t>(buffer_.size() - filled_, left);
  source_->read_at(next_offset_, std::as_writable_bytes(std::span(buffer_).subspan(filled_, n)));
  next_offset_ += n;
  filled_ += n;
}

bool LineReader::next(Line& line) {
  const uint64_t start = next_offset_ - (filled_ - position_);
  size_t scanned = 0;    // bytes behind position_ without a line end
  uint64_t dropped = 0;  // bytes of a line too long to keep
  for (;;) {
    const char* first = buffer_.data() + position_;
    const size_t fresh = filled_ - position_ - scanned;
    const void* found = fresh > 0 ? std::memchr(first + scanned, '\n', fresh) : nullptr;
    const bool at_end = next_offset_ == end_;
    if (found != nullptr || at_end) {
      const size_t n =
          found != nullptr ? static_cast<size_t>(static_cast<const char*>(found) - first) : scanned + fresh;
      if (found == nullptr && n == 0 && dropped == 0) return false;
      line.offset = start;
      line.bytes = dropped + n;
      line.too_long = line.bytes > max_line_;
      line.text = line.too_long ? std::string_view() : std::string_view(first, n);
      if (line.text.ends_with('\r')) line.text.remove_suffix(1);
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

bool is_blank(std::string_view line) {
  return std::ranges::all_of(line, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

uint64_t text_begin(const ByteSource& source) {
  std::array<std::byte, 3> head{};
  if (source.size() < head.size()) return 0;
  source.read_at(0, head);
  return head == std::array{std::byte{0xEF}, std::byte{0xBB}, std::byte{0xBF}} ? 3 : 0;
}

}  // namespace mythos
