#include "storage/local.h"
#include "base/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mythos {
namespace {

// Reads, not a memory map: a file that shrinks or a mount that vanishes is then an error, not a SIGBUS.
class LocalFile : public ByteSource {
 public:
  explicit LocalFile(const SourceFile& file) : name_(file.location), size_(file.size) {
    fd_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw failure(fmt::format("cannot read {}: {}", name_, std::strerror(errno)));
    struct stat st {};
    const bool known = ::fstat(fd_, &st) == 0;
    if (!known || static_cast<uint64_t>(st.st_size) != size_) {
      ::close(fd_);
      throw failure(fmt::format("{} had {} bytes when it was listed and has {} now", name_, size_, st.st_size),
                    "leave the data alone while it is being read");
    }
  }
  ~LocalFile() override { ::close(fd_); }

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] uint64_t size() const override { return size_; }

  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) const override {
    if (offset > size_ || into.size() > size_ - offset) {
      throw failure(
          fmt::format("{} has {} bytes; {} at offset {} are past its end", name_, size_, into.size(), offset));
    }
    size_t done = 0;
    while (done < into.size()) {
      const ssize_t n = ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw failure(fmt::format("cannot read {}: {}", name_, std::strerror(errno)));
      if (n == 0) {
        throw failure(fmt::format("{} ended at byte {}; it had {} when it was opened", name_, offset + done, size_),
                      "leave the data alone while it is being read");
      }
      done += static_cast<size_t>(n);
    }
  }

 private:
  std::string name_;
  uint64_t size_;
  int fd_ = -1;
};

}  // namespace

std::shared_ptr<const ByteSource> open_local_file(const SourceFile& file) { return std::make_shared<LocalFile>(file); }

}  // namespace mythos
