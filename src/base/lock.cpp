#include "base/lock.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mythos {

FolderLock::FolderLock(const std::filesystem::path& folder, std::string_view doing, const std::string& hint) {
  const auto path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  // Mounts of object stores open nothing for reading and writing at once, and have no locks either.
  if (fd_ < 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) return;
  if (fd_ < 0) {
    throw refusal(fmt::format("cannot write in {}: {}", folder.string(), std::strerror(errno)), hint);
  }
  int refused = ::flock(fd_, LOCK_EX | LOCK_NB);
  // is_held() of another process holds it for an instant.
  for (int i = 0; i < 20 && refused != 0 && errno == EWOULDBLOCK; ++i) {
    ::usleep(5000);
    refused = ::flock(fd_, LOCK_EX | LOCK_NB);
  }
  if (refused != 0) {
    const bool taken = errno == EWOULDBLOCK;
    ::close(fd_);
    fd_ = -1;
    if (!taken) return;  // a file system without locks: go on without
    throw refusal(fmt::format("another process is {} {}", doing, folder.string()),
                  fmt::format("wait for it or stop it, or {}", hint));
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

bool FolderLock::is_held(const std::filesystem::path& folder) {
  const auto path = folder / ".lock";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

}  // namespace mythos
