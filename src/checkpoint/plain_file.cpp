#include "checkpoint/plain_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace mythos {

bool sync_failed(int fd) { return ::fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != ENOSYS; }

PlainFile::PlainFile(std::filesystem::path path) : path_(std::move(path)) {
  // Object stores do not write over what is there.
  ::unlink(path_.c_str());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) {
    throw failure(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)),
                  "check that the folder exists and is writable");
  }
}

PlainFile::~PlainFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(path_.c_str());
}

void PlainFile::fail(const char* doing) const {
  const int code = errno;
  throw failure(fmt::format("{} {} failed after {} bytes: {}", doing, path_.string(), size_, std::strerror(code)),
                code == ENOSPC || code == EDQUOT ? "the disk is full: free space or choose another folder" : "");
}

void PlainFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("writing");
    }
    hasher_.add(bytes.data(), static_cast<size_t>(n));
    size_ += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
    behind_.wrote(fd_, size_);
  }
}

void PlainFile::commit() {
  if (sync_failed(fd_)) fail("syncing");
  // Some mounts upload when a file is closed, and tell only then.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    const int code = errno;
    ::unlink(path_.c_str());
    errno = code;
    fail("closing");
  }
}

void write_plain(const std::filesystem::path& path, std::string_view text) {
  PlainFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace mythos
