// A safetensors file in which no flipped bit goes unseen: the metadata begins with a checksum of the length and header
// themselves ("header_checksum", its own digits counted as zeros) and ends with one of every tensor's bytes
// ("checksums", a JSON object). Checksums are XXH3-64 in 16 hexadecimal digits (https://github.com/Cyan4973/xxHash).
#pragma once

#include "base/safetensors.h"
#include "storage/byte_sink.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// The metadata with the keys for checksums around it; the header's own is zeros.
SafetensorsMetadata with_checksums(const SafetensorsMetadata& metadata, std::span<const TensorInfo> tensors,
                                   std::span<const uint64_t> checksums);

struct WriteOptions {
  bool refuse_non_finite = true;  ///< F32 tensors with NaN or infinity: Error, and nothing is written
  int threads = 2;                ///< for checksums
};

/// Bytes before the first tensor's: checked_header_bytes(), or more where the metadata does not fit its room.
uint64_t header_bytes_of(std::span<const TensorInfo> tensors, const SafetensorsMetadata& metadata);

/// Where a checked file goes.
struct CheckedPlace {
  std::string shown;                                              ///< what messages call it
  std::function<std::unique_ptr<ByteSink>(uint64_t bytes)> open;  ///< called once, when all is ready to be written
  std::function<std::optional<uint64_t>()> free;                  ///< bytes free there, where that can be known
};

/// Writes a checked file that is whole or absent, of exactly checked_file_bytes() unless the metadata outgrows its room
/// (then larger, with a warning). The tensors' bytes must stay as they are meanwhile. Throws Error naming the tensor,
/// or the reason with the bytes needed and free; what was at `path` before is then still there.
void write_checked(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                   const SafetensorsMetadata& metadata, const WriteOptions& options = {});
void write_checked(const CheckedPlace& place, std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                   const WriteOptions& options = {});

/// Checks the length and header, padding included. Throws FormatError; also for a file without a checksum.
void verify_header(const SafetensorsFile& file);
/// Reads every tensor's bytes from the disk and checks them. Throws FormatError naming the first damaged tensor.
void verify_tensors(const SafetensorsFile& file, int threads = 2);

}  // namespace mythos
