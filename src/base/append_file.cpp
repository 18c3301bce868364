#include "base/append_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace mythos {
namespace {

int open_to_append(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)), fd_(open_to_append(path_)) {
  if (fd_ < 0) throw failure(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void AppendFile::follow_name() {
  struct stat named {};
  struct stat ours {};
  if (::fstat(fd_, &ours) != 0) return;
  const bool there = ::stat(path_.c_str(), &named) == 0;
  if (there ? named.st_ino == ours.st_ino && named.st_dev == ours.st_dev : errno != ENOENT) return;
  const int fresh = open_to_append(path_);
  if (fresh < 0) return;  // the old file is better than none
  ::close(fd_);
  fd_ = fresh;
}

std::string AppendFile::write(std::string_view text) {
  if (fd_ < 0 || text.empty()) return "";
  follow_name();
  struct stat before {};
  const bool known = ::fstat(fd_, &before) == 0;
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      std::string why = n < 0 ? std::strerror(errno) : "nothing was taken";
      if (known && ::ftruncate(fd_, before.st_size) != 0) why += ", and a part of it was left behind";
      return why;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return "";
}

}  // namespace mythos
