// Named tensors in one file, as Python's `safetensors` reads and writes them: an 8-byte little-endian length, that many
// bytes of JSON (name -> dtype, shape, byte range; "__metadata__" -> strings), then the tensors' bytes without a hole.
// https://github.com/huggingface/safetensors describes the format.
#pragma once

#include "base/error.h"
#include "base/file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos {

/// The file's content is not what its format says: damaged, cut off, or another kind of file. What the system refuses
/// (no such file, no permission) is a plain Error.
class FormatError : public Error {
 public:
  explicit FormatError(const std::string& what, std::string hint = "")
      : Error(ExitCode::failed, what, std::move(hint)) {}
};

/// All of the format's element types, by its own names.
enum class DType : uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

std::string_view to_string(DType dtype);
std::optional<DType> dtype_from(std::string_view name);
/// Bits of one element; 4 and 6 for the packed types.
int64_t bits_of(DType dtype);
/// Bytes of one element, 0 for types smaller than a byte.
inline int64_t size_of(DType dtype) { return bits_of(dtype) / 8; }

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;

  /// Elements; shapes of files and of what was written never overflow this.
  [[nodiscard]] int64_t numel() const;
};

/// Bytes that a tensor of this type and shape takes; nothing if the number does not fit int64, a size is negative or
/// the bits do not fill whole bytes.
std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape);

/// A tensor to be written: TensorBytes{{name, dtype, shape}, bytes}.
struct TensorBytes : TensorInfo {
  std::span<const std::byte> data;
};

/// Metadata to be written, in this order.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

/// A memory-mapped file, every byte of which is accounted for by its checked header. Data is as aligned as the file
/// lays it out: files of ours with one dtype are aligned to it, others need not be. A file that another process cuts
/// while it is mapped ends this one (SIGBUS), as with every map.
class SafetensorsFile {
 public:
  struct Entry : TensorInfo {
    uint64_t begin = 0;  ///< first byte, counted from the start of the data
    uint64_t end = 0;    ///< one past the last
  };

  /// Longest header taken, the format's own limit.
  static constexpr uint64_t max_header_bytes = 100'000'000;
  static constexpr size_t max_tensors = 200'000;
  static constexpr size_t max_rank = 64;

  /// Throws FormatError naming the file, and the tensor where there is one; Error if the file cannot be read. `shown`
  /// is what messages call a file that is a copy of another.
  static SafetensorsFile open(const std::filesystem::path& path, const std::filesystem::path& shown = {});

  /// In the order of their bytes.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// By name; nullptr if there is none.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  /// By name; throws FormatError naming the file and the tensor if there is none.
  [[nodiscard]] const Entry& at(std::string_view name) const;
  [[nodiscard]] std::span<const std::byte> data(const Entry& entry) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// What messages call it.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Where its bytes can be read.
  [[nodiscard]] const std::filesystem::path& bytes_path() const { return bytes_path_; }
  /// The length and the header as they lie in the file, padding included.
  [[nodiscard]] std::span<const std::byte> header() const { return map_.bytes().first(data_begin_); }
  [[nodiscard]] uint64_t data_begin() const { return data_begin_; }
  [[nodiscard]] uint64_t file_bytes() const { return map_.bytes().size(); }

 private:
  SafetensorsFile(const std::filesystem::path& path, const std::filesystem::path& shown);
  void index_names();
  void check_layout();

  std::filesystem::path path_, bytes_path_;
  MappedFile map_;
  uint64_t data_begin_ = 0;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_name_;  // indices of entries_, sorted by name
  std::map<std::string, std::string> metadata_;
};

/// The length and header for these tensors laid out one after another, padded with spaces. `header_bytes` is the size
/// of both together (a multiple of 8); 0: the next multiple of 64, so that the data begins aligned. Throws Error if it
/// does not fit, on names twice, or shapes without a size. Metadata that is not UTF-8 has its bad bytes replaced.
std::string safetensors_header(std::span<const TensorInfo> tensors, const SafetensorsMetadata& metadata,
                               uint64_t header_bytes = 0);

/// Writes header and tensors in the order given. The same input gives the same bytes. Throws Error if a tensor's bytes
/// do not match its shape.
void write_safetensors(AtomicFile& file, std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                       uint64_t header_bytes = 0);
/// The same into a file that is whole or absent.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                       const SafetensorsMetadata& metadata, uint64_t header_bytes = 0);

/// A name from a file as a person may see it: quoted, cut, and without control characters.
std::string shown_name(std::string_view name);

}  // namespace mythos
