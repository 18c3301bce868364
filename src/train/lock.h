// One process per run folder.
#pragma once

#include <filesystem>

namespace mythos {

/// Holds an exclusive lock on FOLDER/.lock while it lives. The kernel releases it when the process ends in any way, so
/// a killed process leaves nothing behind that blocks the next.
class FolderLock {
 public:
  /// Throws a refusal if another process holds it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace mythos
