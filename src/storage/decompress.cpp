#include "storage/decompress.h"

#include <arrow/result.h>
#include <arrow/util/compression.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace mythos {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

// A source in pieces, front to back.
class Pieces {
 public:
  Pieces(const std::shared_ptr<const ByteSource>& source, uint64_t offset) : offset_(offset), size_(source->size()) {
    if (offset > size_) {
      throw failure(fmt::format("{} has {} bytes and cannot be read from byte {}", source->name(), size_, offset));
    }
    source_ = read_ahead(source, offset, size_ - offset);
  }

  // What is at hand; reads on if that is nothing. Empty only at the end of the file.
  std::span<const std::byte> peek(const std::stop_token& stop) {
    if (stop.stop_requested()) throw Stopped(fmt::format("reading {} was stopped", name()));
    if (begin_ == piece_.size() && offset_ < size_) {
      const size_t n = std::min<uint64_t>(piece_bytes, size_ - offset_);
      // A read that fails leaves nothing at hand, so that the next one asks for the same bytes.
      piece_.resize(n);
      begin_ = n;
      source_->read_at(offset_, piece_, stop);
      begin_ = 0;
    }
    return std::span<const std::byte>(piece_).subspan(begin_);
  }
  void take(size_t n) {
    begin_ += n;
    offset_ += n;
  }

  [[nodiscard]] uint64_t offset() const { return offset_; }  // of the next byte
  [[nodiscard]] const std::string& name() const { return source_->name(); }

 private:
  std::shared_ptr<const ByteSource> source_;
  uint64_t offset_;
  uint64_t size_;
  std::vector<std::byte> piece_;
  size_t begin_ = 0;
};

class PlainStream : public ByteStream {
 public:
  PlainStream(const std::shared_ptr<const ByteSource>& source, uint64_t offset) : pieces_(source, offset) {}

  size_t read(std::span<std::byte> into, std::stop_token stop) override {
    const auto piece = pieces_.peek(stop);
    const size_t n = std::min(piece.size(), into.size());
    std::copy_n(piece.begin(), n, into.begin());
    pieces_.take(n);
    return n;
  }

 private:
  Pieces pieces_;
};

bool begins(std::span<const std::byte> bytes, std::initializer_list<int> magic) {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), bytes.begin(), [](int m, std::byte b) { return std::byte(m) == b; });
}

// What a file without the magic number of its codec looks like.
std::string looks_like(std::span<const std::byte> bytes) {
  if (begins(bytes, {0x1f, 0x8b})) return "it begins like a gzip file";
  if (begins(bytes, {0x28, 0xb5, 0x2f, 0xfd})) return "it begins like a zstd file";
  if (begins(bytes, {'P', 'A', 'R', '1'})) return "it begins like a Parquet file";
  if (begins(bytes, {'B', 'Z', 'h'})) return "it begins like a bzip2 file";
  if (begins(bytes, {0xfd, '7', 'z', 'X', 'Z'})) return "it begins like an xz file";
  if (begins(bytes, {'P', 'K', 3, 4})) return "it begins like a zip archive";
  const auto first = bytes.first(std::min<size_t>(bytes.size(), 64));
  const bool text = std::ranges::all_of(first, [](std::byte b) {
    const int c = std::to_integer<int>(b);
    return c >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
  return text ? "it begins like plain text" : "it begins with something else";
}

class Decompressed : public ByteStream {
 public:
  Decompressed(const std::shared_ptr<const ByteSource>& source, Codec codec)
      : pieces_(source, 0), name_(codec == Codec::gzip ? "gzip" : "zstd"), gzip_(codec == Codec::gzip) {
    const auto type = gzip_ ? arrow::Compression::GZIP : arrow::Compression::ZSTD;
    auto made = arrow::util::Codec::Create(type);
    if (made.ok()) {
      codec_ = std::move(made).ValueUnsafe();
      auto decompressor = codec_->MakeDecompressor();
      if (decompressor.ok()) decompressor_ = std::move(decompressor).ValueUnsafe();
    }
    if (!decompressor_) throw failure(fmt::format("the Arrow library of this build cannot decompress {}", name_));
  }

  size_t read(std::span<std::byte> into, std::stop_token stop) override {
    if (into.empty()) return 0;
    if (!damage_.empty()) throw DamagedStream(damage_, damage_offset_);
    for (;;) {
      const auto in = pieces_.peek(stop);
      if (!inside_) {
        if (in.empty() && parts_ > 0) return 0;
        begin_part(in);
      }
      // At the end of the file too: the codec may hold output that did not fit before.
      const auto step =
          decompressor_->Decompress(static_cast<int64_t>(in.size()), reinterpret_cast<const uint8_t*>(in.data()),
                                    static_cast<int64_t>(into.size()), reinterpret_cast<uint8_t*>(into.data()));
      if (!step.ok()) broken(step.status().message());
      const auto taken = static_cast<size_t>(step->bytes_read);
      const auto written = static_cast<size_t>(step->bytes_written);
      pieces_.take(taken);
      if (decompressor_->IsFinished()) {
        inside_ = false;
        ++parts_;
      } else if (written == 0 && taken == 0) {
        if (in.empty()) damaged("the file ends too early: it was cut short or is still being written");
        damaged("the data makes no sense");
      }
      if (written > 0) return written;
    }
  }

 private:
  void begin_part(std::span<const std::byte> in) {
    if (in.empty()) damaged(fmt::format("the file is empty, and an empty {} file is not", name_));
    // The magic number may lie across two pieces: what is there of it counts, the codec sees the rest.
    const bool known = gzip_ ? begins_as(in, {0x1f, 0x8b}) : begins_as(in, {0x28, 0xb5, 0x2f, 0xfd}) || skippable(in);
    if (!known && parts_ == 0) damaged(fmt::format("this is not {} data; {}", name_, looks_like(in)));
    if (!known) damaged(fmt::format("something that is not {} data follows what is", name_));
    if (const auto status = decompressor_->Reset(); !status.ok()) throw failure(status.message());
    inside_ = true;
  }
  static bool begins_as(std::span<const std::byte> in, std::initializer_list<int> magic) {
    const size_t n = std::min(in.size(), magic.size());
    return std::equal(in.begin(), in.begin() + static_cast<ptrdiff_t>(n), magic.begin(),
                      [](std::byte b, int m) { return std::byte(m) == b; });
  }
  static bool skippable(std::span<const std::byte> in) {
    return (std::to_integer<int>(in[0]) & 0xf0) == 0x50 && begins_as(in.subspan(1), {0x2a, 0x4d, 0x18});
  }

  [[noreturn]] void broken(const std::string& why) {
    if (why.find("too much memory") != std::string::npos) {
      damaged("it needs a window of more than 128 MB; compress it again without --long or --ultra");
    }
    const size_t colon = why.rfind(": ");
    damaged(colon == std::string::npos ? why : why.substr(colon + 2));
  }
  [[noreturn]] void damaged(const std::string& why) {
    damage_offset_ = pieces_.offset();
    damage_ = fmt::format("{} is damaged at byte {}: {}", pieces_.name(), damage_offset_, why);
    throw DamagedStream(damage_, damage_offset_);
  }

  Pieces pieces_;
  std::string name_;
  bool gzip_;
  std::unique_ptr<arrow::util::Codec> codec_;
  std::shared_ptr<arrow::util::Decompressor> decompressor_;
  bool inside_ = false;  // a gzip member or zstd frame
  uint64_t parts_ = 0;   // complete ones
  std::string damage_;
  uint64_t damage_offset_ = 0;
};

}  // namespace

Codec codec_of(std::string_view path) {
  const std::string extension = file_extension(path);
  if (extension.ends_with(".gz")) return Codec::gzip;
  if (extension.ends_with(".zst")) return Codec::zstd;
  return Codec::none;
}

std::unique_ptr<ByteStream> plain(std::shared_ptr<const ByteSource> source, uint64_t offset) {
  return std::make_unique<PlainStream>(source, offset);
}

std::unique_ptr<ByteStream> decompressed(std::shared_ptr<const ByteSource> source, Codec codec) {
  if (codec == Codec::none) return plain(std::move(source), 0);
  return std::make_unique<Decompressed>(source, codec);
}

}  // namespace mythos
