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
  /// Throws a refusal if another process holds it: "another process is `doing` FOLDER", with the hint; and if
  /// the folder cannot be written.
  FolderLock(const std::filesystem::path& folder, std::string_view doing, const std::string& hint);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether a process holds it now; changes nothing, and does not make one that wants it just now fail. False where
  /// nobody ever did, and where the file system has no locks.
  static bool is_held(const std::filesystem::path& folder);

 private:
  int fd_ = -1;
};

}  // namespace mythos
