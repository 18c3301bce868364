// Writes zip archives of stored entries as PyTorch lays them out: data at multiples of 64 bytes, zip64 where needed.
#pragma once

#include "base/file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// Whole or absent: without commit() nothing is left. Throws Error naming the file, as AtomicFile does.
class ZipWriter {
 public:
  /// `bytes`: about how many will be written; a disk without room for them shows at once.
  ZipWriter(const std::filesystem::path& path, uint64_t bytes);
  void add(const std::string& name, std::span<const std::byte> data);
  void add(const std::string& name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }
  void commit();

 private:
  struct Entry {
    std::string name;
    uint64_t header = 0, size = 0;
    uint32_t crc = 0;
  };
  AtomicFile file_;
  std::vector<Entry> entries_;
};

}  // namespace mythos
