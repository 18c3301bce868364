// One process per folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mythos {

/// Holds an exclusive lock on FOLDER/.lock while it lives. The kernel releases it when the process ends in any way, so
/// a killed process leaves nothing behind that blocks the next.
class FolderLock {
 public:
  /// Throws a refusal if another process holds it: "another process is `doing` FOLDER", with the hint.
  FolderLock(const std::filesystem::path& folder, std::string_view doing, const std::string& hint);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace mythos
