#include "base/file.h"

#include "base/error.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view temporary_mark = ".tmp-";

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

std::string reason() { return std::strerror(errno); }

// Opens a regular file for reading and tells its size.
int open_for_reading(const fs::path& path, uint64_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw failure(fmt::format("cannot read {}: {}", path.string(), reason()));
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    const std::string why = S_ISDIR(st.st_mode) ? "it is a folder" : "it is not a regular file";
    ::close(fd);
    throw failure(fmt::format("cannot read {}: {}", path.string(), why));
  }
  size = static_cast<uint64_t>(st.st_size);
  return fd;
}

}  // namespace

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  uint64_t size = 0;
  const Descriptor fd(open_for_reading(path, size));
  if (size > max_bytes) {
    throw failure(fmt::format("{} has {} bytes, more than the {} allowed here", path.string(), size, max_bytes));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure(fmt::format("cannot read {}: {}", path.string(), reason()));
    if (n == 0) break;  // it shrank while we read
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

MappedFile::MappedFile(const fs::path& path) {
  uint64_t size = 0;
  const Descriptor fd(open_for_reading(path, size));
  if (size == 0) return;
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (p == MAP_FAILED) throw failure(fmt::format("cannot map {}: {}", path.string(), reason()));
  data_ = static_cast<const std::byte*>(p);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(fs::path target)
    : target_(std::move(target)),
      temporary_(target_.parent_path() /
                 fmt::format(".{}{}{}", target_.filename().string(), temporary_mark, ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw failure(fmt::format("cannot write {}: {}", target_.string(), reason()),
                  "check that the folder exists and is writable");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* doing) const {
  const int code = errno;
  throw failure(fmt::format("{} {} failed after {} bytes: {}", doing, target_.string(), size_, std::strerror(code)),
                code == ENOSPC ? "the disk is full: free space or choose another folder" : "");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("writing");
    }
    size_ += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::reserve(uint64_t bytes) {
  int done = 0;
  do done = ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  while (done != 0 && errno == EINTR);
  if (done != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) fail("setting space aside for");
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("writing");
    }
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("syncing");
  if (::close(std::exchange(fd_, -1)) != 0) {
    ::unlink(temporary_.c_str());
    fail("closing");
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    errno = code;
    fail("renaming to");
  }
  const fs::path folder = target_.parent_path().empty() ? fs::path(".") : target_.parent_path();
  const Descriptor d(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some mounts (object stores) cannot sync a folder; the rename itself is done by then.
  if (d.get() >= 0 && ::fsync(d.get()) != 0 && errno != EINVAL && errno != ENOTSUP) fail("syncing the folder of");
}

void write_file_atomically(const fs::path& target, std::string_view text) {
  AtomicFile f(target);
  f.write(text);
  f.commit();
}

void make_folder(const fs::path& path) {
  std::error_code ec;
  fs::create_directories(path, ec);
  if (ec || !fs::is_directory(path)) {
    throw failure(
        fmt::format("cannot create the folder {}: {}", path.string(), ec ? ec.message() : "a file is in its place"),
        "choose a folder you may write to");
  }
}

void remove_stale_temporaries(const fs::path& folder) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    const size_t mark = name.rfind(temporary_mark);
    if (name.empty() || name[0] != '.' || mark == std::string::npos) continue;
    const char* first = name.data() + mark + temporary_mark.size();
    const char* last = name.data() + name.size();
    pid_t pid = 0;
    const auto [end, err] = std::from_chars(first, last, pid);
    if (err != std::errc() || end != last || pid <= 0) continue;
    const bool alive = pid != ::getpid() && (::kill(pid, 0) == 0 || errno == EPERM);
    if (!alive) fs::remove(entry.path(), ec);
  }
}

}  // namespace mythos
