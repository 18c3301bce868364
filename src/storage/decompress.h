// Files read front to back, plain or compressed, in bounded memory.
#pragma once

#include "storage/byte_source.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>

namespace mythos {

/// How a file is compressed.
enum class Codec { none, gzip, zstd };

/// By the extension of a path or address: ".gz", ".zst", anything else is plain.
Codec codec_of(std::string_view path);

/// A compressed file that cannot be read on: cut short, altered, followed by something else, not compressed at all.
/// Callers decide whether that stops or is passed over. The message names the file and the offset.
class DamagedStream : public std::runtime_error {
 public:
  DamagedStream(const std::string& what, uint64_t offset) : std::runtime_error(what), offset_(offset) {}
  /// In the file as stored: the damage lies at or shortly before it.
  [[nodiscard]] uint64_t offset() const noexcept { return offset_; }

 private:
  uint64_t offset_;
};

/// Bytes in order, each once. Not thread-safe.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Fills the front of `into` (not empty) and returns how many bytes came, at least one; 0 at the end and ever after.
  /// Throws Error and Stopped as ByteSource::read_at does; after that it may be called again and goes on.
  virtual size_t read(std::span<std::byte> into, std::stop_token stop = {}) = 0;
};

/// The bytes of `source` from `offset` (at most its size) on.
std::unique_ptr<ByteStream> plain(std::shared_ptr<const ByteSource> source, uint64_t offset);

/// What `source` holds once decompressed; Codec::none gives it as it is. Concatenated gzip members and zstd frames
/// follow each other. read() throws DamagedStream (each time it is called again) where the file breaks, after all the
/// bytes before that point, never an end too early. The checksums of gzip, and those of zstd where they were written,
/// are compared. Holds 1 MB of the file and the codec's window, which may be 128 MB at the most.
std::unique_ptr<ByteStream> decompressed(std::shared_ptr<const ByteSource> source, Codec codec);

}  // namespace mythos
