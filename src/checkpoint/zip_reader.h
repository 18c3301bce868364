// Zip archives whose entries are stored as they are, as PyTorch writes them (APPNOTE 6.3.10, zip64 included).
#pragma once

#include "base/file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mythos {

/// A mapped archive. Nothing is unpacked: what an entry holds lies in the file, within its bounds, and no two entries
/// share a byte, so that the archive cannot be larger than its file. Compressed and encrypted entries, entries of
/// several disks, names twice and names that leave their folder are refused.
class ZipFile {
 public:
  static constexpr uint64_t max_entries = 2'000'000;
  static constexpr size_t max_name = 4096;

  struct Entry {
    std::string name;
    uint64_t begin = 0;  ///< first byte of the data in the file
    uint64_t size = 0;
    uint32_t crc = 0;
  };

  /// Throws FormatError naming the file and the entry; Error if the file cannot be read.
  explicit ZipFile(const std::filesystem::path& path);

  /// In the order of the archive's directory.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// By name; nullptr if there is none.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  [[nodiscard]] std::span<const std::byte> data(const Entry& entry) const {
    return map_.bytes().subspan(entry.begin, entry.size);
  }
  /// Throws FormatError if the entry's bytes do not match their checksum.
  void check(const Entry& entry) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] uint64_t file_bytes() const { return map_.bytes().size(); }

  /// Whether a file begins as a zip archive does; false where it cannot be read.
  static bool looks_like_one(const std::filesystem::path& path);

 private:
  struct Directory {
    uint64_t begin = 0, bytes = 0, entries = 0;
  };
  [[nodiscard]] Directory find_directory() const;
  [[nodiscard]] Directory zip64_directory(uint64_t end_record) const;
  void read_directory(const Directory& directory);
  [[nodiscard]] uint64_t data_begin(const Entry& entry, uint64_t header, uint64_t limit) const;
  void check_overlaps(const Directory& directory, const std::vector<uint64_t>& headers) const;

  std::filesystem::path path_;
  MappedFile map_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace mythos
