#include "checkpoint/shared_file.h"

#include "base/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr size_t block = size_t{4} << 20;
constexpr std::string_view done = "done";
constexpr auto pause = std::chrono::milliseconds(20);

// Named like a temporary file, so that one which a killed process leaves is removed with those.
fs::path note_of(const fs::path& temporary, int64_t writer) {
  const std::string name = temporary.filename().string();
  const size_t mark = name.rfind(".tmp-");
  return temporary.parent_path() / fmt::format("{}.part{}{}", name.substr(0, mark), writer, name.substr(mark));
}

class Descriptor {
 public:
  explicit Descriptor(const fs::path& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW)) {
    if (fd_ < 0) fail("opening");
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void write(uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const size_t n = std::min(block, bytes.size());
      const ssize_t written = ::pwrite(fd_, bytes.data(), n, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("writing");
      offset += static_cast<uint64_t>(written);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }
  // What a network's file system keeps until then may fail here.
  void finish() {
    if (::fdatasync(fd_) != 0) fail("syncing");
    if (::close(std::exchange(fd_, -1)) != 0) fail("closing");
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    const int code = errno;
    throw failure(fmt::format("{} {} failed: {}", doing, path_.string(), std::strerror(code)),
                  code == ENOSPC ? "the disk is full: free space or choose another folder" : "");
  }

  const fs::path& path_;
  int fd_;
};

void write_pieces(const fs::path& temporary, std::span<const FilePiece> pieces) {
  Descriptor file(temporary);
  for (const FilePiece& piece : pieces) file.write(piece.offset, piece.bytes);
  file.finish();
}

// Steps over what lies in the file, and writes the rest.
class Filler final : public ByteSink {
 public:
  Filler(AtomicFile& file, std::span<const std::byte> there) : file_(file), there_(there) {}
  void write(std::span<const std::byte> bytes) override {
    const bool is_there = !bytes.empty() && bytes.data() == there_.data() + at_ && at_ + bytes.size() <= there_.size();
    if (!is_there) file_.write_at(at_, bytes);
    at_ += bytes.size();
  }
  void commit() override { file_.commit(); }

 private:
  AtomicFile& file_;
  std::span<const std::byte> there_;
  uint64_t at_ = 0;
};

}  // namespace

SharedFile::SharedFile(const fs::path& target, uint64_t bytes, int64_t writers)
    : target_(target), file_(target), writers_(writers) {
  temporary_ = file_->temporary();
  file_->grow(bytes);
  // They are there from the begin, so that nobody remembers that they are not.
  for (int64_t w = 1; w < writers_; ++w) write_file_atomically(note_of(temporary(), w), "");
}

SharedFile::~SharedFile() { close(); }

void SharedFile::close() {
  map_.reset();
  file_.reset();
  for (int64_t w = 1; w < writers_; ++w) ::unlink(note_of(temporary(), w).c_str());
}

void SharedFile::wait_for_others() const {
  for (int64_t w = 1; w < writers_; ++w) {
    const fs::path note = note_of(temporary(), w);
    for (;;) {
      std::string text;
      try {
        text = read_file(note, 1 << 16);
      } catch (const Error&) {
        throw failure(fmt::format("rank {} could not write its part of {}", w, target_.string()));
      }
      if (text.ends_with('\n')) {
        text.pop_back();
        if (text == done) break;
        throw failure(fmt::format("rank {} could not write its part: {}", w, text));
      }
      if (given_up_) throw failure(fmt::format("a rank lost sight of {}", target_.string()));
      std::this_thread::sleep_for(pause);
    }
  }
}

std::span<const std::byte> SharedFile::read_back() {
  map_.emplace(temporary());
  return map_->bytes();
}

std::unique_ptr<ByteSink> SharedFile::sink() {
  return std::make_unique<Filler>(*file_, map_ ? map_->bytes() : std::span<const std::byte>());
}

bool write_part(const fs::path& temporary, int64_t writer, std::span<const FilePiece> pieces) {
  if (writer == 0) {
    write_pieces(temporary, pieces);
    return true;
  }
  std::string said(done);
  try {
    write_pieces(temporary, pieces);
  } catch (const Error& e) {
    said = e.line();
    std::replace(said.begin(), said.end(), '\n', ' ');
  }
  said += '\n';
  const fs::path path = note_of(temporary, writer);
  try {
    Descriptor note(path);
    note.write(0, std::as_bytes(std::span(said)));
    note.finish();
    return true;
  } catch (const Error&) {
    // A note that is gone says that it went wrong. One that was gone before is nobody's any more.
    return ::unlink(path.c_str()) == 0 || errno == ENOENT;
  }
}

}  // namespace mythos
