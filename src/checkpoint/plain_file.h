// Files written under their own names, for file systems that cannot rename.
#pragma once

#include "base/file.h"
#include "checkpoint/hasher.h"
#include "storage/byte_sink.h"

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace mythos {

/// Replaces what was there. Removed again unless it is committed.
class PlainFile : public ByteSink {
 public:
  explicit PlainFile(std::filesystem::path path);
  ~PlainFile() override;
  using ByteSink::write;
  void write(std::span<const std::byte> bytes) override;
  void commit() override;
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] uint64_t hash() const { return hasher_.value(); }

 private:
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  Hasher hasher_;
  WriteBehind behind_;
};

void write_plain(const std::filesystem::path& path, std::string_view text);

/// Syncing is not known everywhere; where it is, it must work.
bool sync_failed(int fd);

}  // namespace mythos
