#include "checkpoint/s3_target.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view note_suffix = ".note";
constexpr size_t piece = size_t{8} << 20;

bool is_note_of(const std::string& note, const std::string& name) {
  return note.starts_with(name + ".") && note.ends_with(note_suffix);
}

// The notes about the object before it go when it is there.
class S3Checkpoint : public ByteSink {
 public:
  S3Checkpoint(S3Folder folder, std::string name, bool fast)
      : folder_(std::move(folder)), name_(std::move(name)), upload_(folder_.upload(name_, fast)) {}
  void write(std::span<const std::byte> bytes) override { upload_->write(bytes); }
  void commit() override {
    upload_->commit();
    for (const auto& entry : folder_.list()) {
      if (is_note_of(entry.name, name_)) folder_.remove(entry.name);
    }
  }

 private:
  S3Folder folder_;
  std::string name_;
  std::unique_ptr<ByteSink> upload_;
};

void copy(const ByteSource& from, uint64_t bytes, NamelessFile& to) {
  // A minute and more for a large one: a log in a file says what is waited for.
  if (bytes > (uint64_t{256} << 20) && !log::is_terminal()) {
    log::info("reading {} ({})", from.name(), bytes_text(static_cast<double>(bytes)));
  }
  std::vector<std::byte> buffer(std::min<uint64_t>(piece, bytes));
  for (uint64_t done = 0; done < bytes;) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes - done));
    from.read_at(done, part);
    to.write_at(done, part);
    done += part.size();
    if (bytes > 4 * piece) {
      log::live_line(fmt::format("reading {}: {:.0f}%", from.name(),
                                 100 * static_cast<double>(done) / static_cast<double>(bytes)));
    }
  }
  log::live_line("");
}

}  // namespace

NamelessFile::NamelessFile(uint64_t bytes, const std::string& what_for) {
  std::error_code ec;
  for (const fs::path& folder : {fs::temp_directory_path(ec), fs::path(".")}) {
    const fs::space_info space = fs::space(folder, ec);
    if (folder.empty() || ec || space.available < bytes + (uint64_t{64} << 20)) continue;
    std::string name = (folder / "mythos_checkpoint_XXXXXX").string();
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) continue;
    ::unlink(name.c_str());
    break;
  }
  if (fd_ < 0 && available_memory() > static_cast<int64_t>(bytes + bytes / 2)) {
    fd_ = ::memfd_create("mythos_checkpoint", MFD_CLOEXEC);
  }
  if (fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(bytes)) == 0) return;
  if (fd_ >= 0) ::close(fd_);
  throw failure(fmt::format("there is no room for a copy of {}: {} are needed in {} or in memory", what_for,
                            bytes_text(static_cast<double>(bytes)), fs::temp_directory_path(ec).string()),
                "free space, or set TMPDIR to a folder with more");
}

NamelessFile::~NamelessFile() { ::close(fd_); }

std::string NamelessFile::path() const { return fmt::format("/proc/self/fd/{}", fd_); }

void NamelessFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw failure(fmt::format("a temporary file cannot be written: {}", std::strerror(errno)));
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

S3Target::S3Target(const std::string& address, double patience)
    : CheckpointTarget(S3Folder(address).address()), folder_(address, patience), patience_(patience) {}

void S3Target::prepare() {
  // One process may be looking at what another is writing.
  const std::string name = fmt::format(".write_test-{}-{}", host_name(), ::getpid());
  constexpr std::string_view text = "a checkpoint can be written here\n";
  folder_.put(name, text);
  const std::string found = folder_.get(name, 4096);
  folder_.remove(name);
  if (found != text) {
    throw failure(fmt::format("what is written in {} reads back as something else", address()),
                  "choose another checkpoint.dir");
  }
}

std::vector<StoredFile> S3Target::list() const {
  std::vector<StoredFile> files;
  const auto entries = folder_.list();
  for (size_t i = 0; i < entries.size(); ++i) {
    files.push_back({entries[i].name, entries[i].size, entries[i].version, Standing::whole});
    for (size_t j = i + 1; j < entries.size() && entries[j].name.starts_with(entries[i].name + "."); ++j) {
      if (is_note_of(entries[j].name, entries[i].name)) files.back().standing = Standing::aside;
    }
  }
  return files;
}

std::unique_ptr<ByteSink> S3Target::create(const std::string& name, uint64_t /*bytes*/, bool fast) {
  return std::make_unique<S3Checkpoint>(folder_, name, fast);
}

Checkpoint S3Target::open(const StoredFile& file, Part part) const {
  const std::string shown = address_of(file.name);
  const auto copied = std::make_shared<NamelessFile>(file.bytes, shown);
  const auto source = folder_.open({file.name, file.bytes, ""});
  if (part == Part::whole) {
    copy(*read_ahead(source, 0, file.bytes), file.bytes, *copied);
  } else {
    uint64_t length = 0;
    if (file.bytes >= sizeof(length)) source->read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    const uint64_t most = std::min(file.bytes, SafetensorsFile::max_header_bytes);
    copy(*source,
         length > most ? std::min<uint64_t>(sizeof(length), file.bytes) : std::min(file.bytes, length + sizeof(length)),
         *copied);
  }
  Checkpoint checkpoint = Checkpoint::open(copied->path(), shown);
  checkpoint.copy = copied;
  return checkpoint;
}

void S3Target::remove(const std::string& name) {
  folder_.remove(name);
  for (const auto& entry : folder_.list()) {
    if (is_note_of(entry.name, name)) folder_.remove(entry.name);
  }
}

std::string S3Target::set_aside(const std::string& name, std::string_view suffix) {
  const std::string note = fmt::format("{}{}{}", name, suffix, note_suffix);
  folder_.put(note, fmt::format("{} does not count any more\n", name));
  return fmt::format("{} does not count any more: see {}", address_of(name), note);
}

std::string S3Target::set_all_aside() {
  if (folder_.is_bucket()) {
    throw failure(fmt::format("{} is a whole bucket and cannot be set aside", address()),
                  "choose another checkpoint.dir for the new run");
  }
  for (int n = 1;; ++n) {
    const S3Folder target(fmt::format("{}.{}", address(), n), patience_);
    if (!target.list().empty()) continue;
    for (const auto& entry : folder_.list()) folder_.move(entry.name, target);
    return target.address();
  }
}

}  // namespace mythos
