#include "base/file.h"

#include "base/error.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
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

// Opens a regular file for reading and tells its size. Without O_NONBLOCK a named pipe would wait for its writer.
int open_for_reading(const fs::path& path, uint64_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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

enum class Lock { ours, taken, unknown };

// Takes the file's lock if it is free; unknown where the file system has no locks.
Lock lock_now(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Lock::ours;
  return errno == EWOULDBLOCK ? Lock::taken : Lock::unknown;
}

// The process id in a temporary file's name (".NAME.tmp-PID" or ".NAME.tmp-PID-N"), or 0 for any other name.
pid_t writer_of(std::string_view name) {
  const size_t mark = name.rfind(temporary_mark);
  if (name.empty() || name[0] != '.' || mark == std::string_view::npos) return 0;
  const char* last = name.data() + name.size();
  pid_t pid = 0;
  auto [end, err] = std::from_chars(name.data() + mark + temporary_mark.size(), last, pid);
  int counter = 0;
  if (err != std::errc() || pid <= 0) return 0;
  if (end != last && *end == '-') end = std::from_chars(end + 1, last, counter).ptr;
  return end == last && last[-1] != '-' ? pid : 0;
}

}  // namespace

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  uint64_t size = 0;
  const Descriptor fd(open_for_reading(path, size));
  const auto refuse_size = [&](std::string_view has) {
    throw failure(fmt::format("{} has {} bytes, more than the {} allowed here", path.string(), has, max_bytes));
  };
  if (size > max_bytes) refuse_size(fmt::format("{}", size));
  std::string text(size + 1, '\0');  // one more: the last read finds the end
  size_t done = 0;
  while (true) {
    // The size is only a hint: files of /proc and /sys report 0 or a page, others grow or shrink while we read.
    if (done == text.size()) text.resize(done + 4096);
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure(fmt::format("cannot read {}: {}", path.string(), reason()));
    if (n == 0) break;
    done += static_cast<size_t>(n);
    if (done > max_bytes) refuse_size(fmt::format("at least {}", done));
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

void WriteBehind::wrote(int fd, uint64_t size) {
  constexpr uint64_t window = uint64_t{8} << 20;
  if (size - sent_ < window) return;
  ::sync_file_range(fd, static_cast<off_t>(sent_), static_cast<off_t>(size - sent_), SYNC_FILE_RANGE_WRITE);
  if (sent_ > dropped_) {
    // The part before is on its way since the last call: by now there is little to wait for.
    const auto from = static_cast<off_t>(dropped_);
    const auto bytes = static_cast<off_t>(sent_ - dropped_);
    ::sync_file_range(fd, from, bytes,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(fd, from, bytes, POSIX_FADV_DONTNEED);
    dropped_ = sent_;
  }
  sent_ = size;
}

// Opens and locks a temporary file that no living writer holds. The lock, not the process id in the name, tells the
// living from the dead: ids come back, in containers within seconds.
AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary_ = target_.parent_path() / fmt::format(".{}{}{}{}", target_.filename().string(), temporary_mark,
                                                     ::getpid(), attempt == 0 ? "" : fmt::format("-{}", attempt));
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd_ < 0) break;
    struct stat st {};
    const bool ours = lock_now(fd_) != Lock::taken && ::fstat(fd_, &st) == 0 && st.st_nlink > 0;
    if (ours && ::ftruncate(fd_, 0) == 0) return;
    ::close(std::exchange(fd_, -1));
    if (ours) break;
    // Another writer's, or removed as a leftover before we had the lock: try again.
  }
  throw failure(fmt::format("cannot write {}: {}", target_.string(), reason()),
                "check that the folder exists and is writable");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* doing) const {
  const int code = errno;
  const char* hint = code == ENOSPC   ? "the disk is full: free space or choose another folder"
                     : code == EDQUOT ? "the disk quota is used up: free space or choose another folder"
                     : code == EFBIG  ? "files may not grow that large here: see ulimit -f and the file system's limit"
                                      : "";
  throw failure(fmt::format("{} {} failed after {} bytes: {}", doing, target_.string(), size_, std::strerror(code)),
                hint);
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

void AtomicFile::grow(uint64_t bytes) {
  reserve(bytes);
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("growing");
  size_ = bytes;
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    throw failure(fmt::format("bytes {} to {} of {} cannot be overwritten: {} are written", offset,
                              offset + bytes.size(), target_.string(), size_));
  }
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
  // Renamed while still open, so that its lock keeps others from taking it for a leftover. After fsync a close cannot
  // lose anything.
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("renaming to");
  ::close(std::exchange(fd_, -1));
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
  std::error_code ignored;
  if (ec || !fs::is_directory(path, ignored)) {
    throw failure(
        fmt::format("cannot create the folder {}: {}", path.string(), ec ? ec.message() : "a file is in its place"),
        "choose a folder you may write to");
  }
}

fs::path set_folder_aside(const fs::path& dir) {
  fs::path plain = dir.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();  // "runs/x/"
  if (plain.filename() == "." || plain.filename() == "..") plain = fs::weakly_canonical(plain);
  for (int n = 1;; ++n) {
    const fs::path target = plain.parent_path() / fmt::format("{}.{}", plain.filename().string(), n);
    std::error_code ec;
    if (fs::exists(fs::symlink_status(target, ec))) continue;
    fs::rename(plain, target, ec);
    if (ec) throw failure(fmt::format("cannot set {} aside as {}: {}", dir.string(), target.string(), ec.message()));
    return target;
  }
}

fs::path nearest_existing(const fs::path& path) {
  std::error_code ec;
  fs::path there = fs::absolute(path, ec);
  while (!fs::exists(there, ec) && there.has_relative_path()) there = there.parent_path();
  return there;
}

std::optional<fs::space_info> space_at(const fs::path& path) {
  std::error_code ec;
  const fs::space_info space = fs::space(nearest_existing(path), ec);
  if (ec || space.capacity == 0) return std::nullopt;
  return space;
}

void remove_stale_temporaries(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator entry(folder, ec), end; !ec && entry != end; entry.increment(ec)) {
    const pid_t pid = writer_of(entry->path().filename().string());
    if (pid == 0) continue;
    const Descriptor fd(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd.get() < 0) continue;
    const Lock lock = lock_now(fd.get());
    const bool alive = lock == Lock::taken || (lock == Lock::unknown && (::kill(pid, 0) == 0 || errno == EPERM));
    if (!alive) ::unlink(entry->path().c_str());
  }
}

}  // namespace mythos
