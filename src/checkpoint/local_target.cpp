#include "checkpoint/local_target.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/plain_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view mode_file = ".marks_whole_files";
constexpr std::string_view mark_suffix = ".complete";
constexpr std::string_view note_suffix = ".note";
constexpr size_t block = size_t{4} << 20;

// Renamed when it is whole.
class RenamedFile : public ByteSink {
 public:
  RenamedFile(const fs::path& path, uint64_t bytes) : file_(path) { file_.reserve(bytes); }
  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(block, bytes.size()));
      file_.write(part);
      file_.pace();
      bytes = bytes.subspan(part.size());
    }
  }
  void commit() override { file_.commit(); }

 private:
  AtomicFile file_;
};

void remove_notes(const fs::path& folder, const std::string& name) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec); !ec && it != fs::directory_iterator(); it.increment(ec)) {
    const std::string other = it->path().filename().string();
    if (other.starts_with(name + ".") && other.ends_with(note_suffix)) ::unlink(it->path().c_str());
  }
}

void write_mark(const fs::path& path, uint64_t bytes, uint64_t hash) {
  write_plain(path.string() + std::string(mark_suffix),
              Json{{"bytes", bytes}, {"xxh3", hash_text(hash)}}.dump() + "\n");
}

// Written under its own name; the mark comes last.
class MarkedFile : public ByteSink {
 public:
  explicit MarkedFile(const fs::path& path) : path_(unmarked(path)), file_(path_) {}
  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(block, bytes.size()));
      file_.write(part);
      bytes = bytes.subspan(part.size());
    }
  }
  void commit() override {
    file_.commit();
    try {
      write_mark(path_, file_.size(), file_.hash());
    } catch (const Error&) {
      ::unlink(path_.c_str());
      throw;
    }
    remove_notes(path_.parent_path(), path_.filename().string());
  }

 private:
  // The old mark goes before the old file does.
  static const fs::path& unmarked(const fs::path& path) {
    ::unlink((path.string() + std::string(mark_suffix)).c_str());
    return path;
  }

  fs::path path_;
  PlainFile file_;
};

// Whether the mark of a file is there and names this size.
bool is_marked(const fs::path& path, uint64_t bytes) {
  try {
    const Json mark = Json::parse(read_file(path.string() + std::string(mark_suffix), 4096), nullptr, false);
    return mark.is_object() && mark.value("bytes", Json()) == bytes;
  } catch (const Error&) {
    return false;
  }
}

// The type of the file system that holds `path`, as the system's table of mounts has it: "fuse.s3fs".
std::string file_system_of(const fs::path& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return "";
  const std::string device = fmt::format("{}:{}", major(st.st_dev), minor(st.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, number;
    words >> id >> parent >> number;
    const size_t dash = line.find(" - ");
    if (number == device && dash != std::string::npos)
      return line.substr(dash + 3, line.find(' ', dash + 3) - dash - 3);
  }
  return "";
}

// Mounted object stores: where they can rename at all, it is a copy and a delete.
bool is_mounted_bucket(const std::string& type) {
  static constexpr std::array<std::string_view, 14> known{"s3fs",    "mountpoint-s3", "gcsfuse",   "rclone",   "goofys",
                                                          "geesefs", "blobfuse",      "blobfuse2", "s3backer", "yas3fs",
                                                          "ossfs",   "cosfs",         "obsfs",     "s3fuse"};
  const size_t dot = type.find('.');
  const std::string name = dot == std::string::npos ? type : type.substr(dot + 1);
  return type.starts_with("fuse") && std::ranges::find(known, name) != known.end();
}

}  // namespace

std::unique_ptr<ByteSink> renamed_file(const fs::path& path, uint64_t bytes) {
  return std::make_unique<RenamedFile>(path, bytes);
}

namespace {
std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}
}  // namespace

LocalTarget::LocalTarget(const std::string& folder) : CheckpointTarget(without_slash(folder)), dir_(address()) {}

bool LocalTarget::marks() const {
  std::error_code ec;
  return fs::exists(dir_ / mode_file, ec);
}

void LocalTarget::prepare() {
  make_folder(dir_);
  remove_stale_temporaries(dir_);
  const bool marked = marks();
  if (marked) finish_or_remove(true);
  const std::string reason = why_not_rename();
  if (reason.empty()) {
    // The way every save will go.
    write_file_atomically(dir_ / ".write_test", "a checkpoint can be written here\n");
    ::unlink((dir_ / ".write_test").c_str());
    if (marked) ::unlink((dir_ / mode_file).c_str());
    return;
  }
  if (marked) return;
  log::warn("files in {} cannot be renamed safely ({}): each checkpoint gets a small file NAME{}, written last",
            dir_.string(), reason, mark_suffix);
  write_plain(dir_ / mode_file, "");
  finish_or_remove(false);
}

// Tries write, sync, rename over, read back and delete. Why renaming is not to be trusted, or "".
std::string LocalTarget::why_not_rename() const {
  const fs::path target = dir_ / ".write_test";
  const fs::path other = dir_ / ".write_test.new";
  constexpr std::string_view text = "a checkpoint can be written here\n";
  write_plain(target, "before\n");
  write_plain(other, text);
  struct stat before {};
  struct stat after {};
  std::string reason;
  const bool known = ::stat(other.c_str(), &before) == 0;
  const bool renamed = ::rename(other.c_str(), target.c_str()) == 0;
  if (!renamed) {
    reason = std::strerror(errno);
  } else if (::access(other.c_str(), F_OK) == 0) {
    reason = "the old name stays";
  } else if (!known || ::stat(target.c_str(), &after) != 0 || after.st_ino != before.st_ino) {
    reason = "renaming makes a copy";
  } else if (const std::string type = file_system_of(dir_); is_mounted_bucket(type)) {
    reason = fmt::format("it is a mounted bucket, {}", type);
  }
  std::string found;
  try {
    found = read_file(target, 4096);
  } catch (const Error& e) {
    throw failure(fmt::format("what is written in {} cannot be read back: {}", dir_.string(), e.what()),
                  "choose another checkpoint.dir");
  }
  if (found != (renamed ? text : "before\n")) {
    if (!renamed) {
      throw failure(fmt::format("what is written in {} reads back as something else", dir_.string()),
                    "choose another checkpoint.dir");
    }
    reason = "a renamed file has other bytes";
  }
  ::unlink(other.c_str());
  if (::unlink(target.c_str()) != 0 && errno != ENOENT) {
    throw failure(fmt::format("files in {} cannot be deleted: {}", dir_.string(), std::strerror(errno)),
                  "old checkpoints could not be removed: allow that, or choose another checkpoint.dir");
  }
  return reason;
}

// Files that were written to their end without a mark get one; others are what a killed process left.
void LocalTarget::finish_or_remove(bool remove_bad) {
  for (const StoredFile& file : list()) {
    if (file.standing != Standing::unfinished) continue;
    const fs::path path = dir_ / file.name;
    try {
      Checkpoint::open(path).verify();
      Hasher hasher;
      const MappedFile bytes(path);
      hasher.add(bytes.bytes().data(), bytes.bytes().size());
      write_mark(path, bytes.bytes().size(), hasher.value());
    } catch (const FormatError&) {
      if (!remove_bad) continue;
      log::warn("{} was never written to its end: removed", path.string());
      ::unlink((path.string() + std::string(mark_suffix)).c_str());
      ::unlink(path.c_str());
    }
  }
}

std::vector<StoredFile> LocalTarget::list() const {
  std::vector<StoredFile> files;
  std::set<std::string> names;
  std::error_code ec;
  fs::directory_iterator it(dir_, ec);
  if (ec == std::errc::no_such_file_or_directory) return files;
  for (; !ec && it != fs::directory_iterator(); it.increment(ec)) {
    struct stat st {};
    if (::stat(it->path().c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    const std::string name = it->path().filename().string();
    names.insert(name);
    files.push_back({name, static_cast<uint64_t>(st.st_size),
                     fmt::format("{} {} {}.{:09}", st.st_ino, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec),
                     Standing::whole});
  }
  if (ec) {
    throw failure(fmt::format("cannot read the checkpoint folder {}: {}", dir_.string(), ec.message()),
                  "check that it is mounted and that you may read it");
  }
  std::ranges::sort(files, {}, &StoredFile::name);
  if (!marks()) return files;
  for (StoredFile& file : files) {
    if (!file.name.ends_with(".safetensors")) continue;
    const auto note = names.lower_bound(file.name + ".");
    const auto is_note = [&](const std::string& n) {
      return n.starts_with(file.name + ".") && n.ends_with(note_suffix);
    };
    if (std::any_of(note, names.end(), is_note)) {
      file.standing = Standing::aside;
    } else if (!is_marked(dir_ / file.name, file.bytes)) {
      file.standing = Standing::unfinished;
    }
  }
  return files;
}

std::unique_ptr<ByteSink> LocalTarget::create(const std::string& name, uint64_t bytes, bool /*fast*/) {
  if (marks()) return std::make_unique<MarkedFile>(dir_ / name);
  return renamed_file(dir_ / name, bytes);
}

std::unique_ptr<SharedFile> LocalTarget::create_shared(const std::string& name, uint64_t bytes, int64_t writers) {
  return std::make_unique<SharedFile>(dir_ / name, bytes, writers);
}

Checkpoint LocalTarget::open(const StoredFile& file, Part /*part*/) const { return Checkpoint::open(dir_ / file.name); }

void LocalTarget::remove(const std::string& name) {
  if (marks()) {
    ::unlink((dir_ / (name + std::string(mark_suffix))).c_str());
    remove_notes(dir_, name);
  }
  std::error_code ec;
  fs::remove(dir_ / name, ec);
  if (ec) throw failure(fmt::format("cannot remove {}: {}", address_of(name), ec.message()));
}

std::string LocalTarget::set_aside(const std::string& name, std::string_view suffix) {
  if (marks()) {
    const std::string note = fmt::format("{}{}{}", name, suffix, note_suffix);
    write_plain(dir_ / note, fmt::format("{} does not count any more\n", name));
    ::unlink((dir_ / (name + std::string(mark_suffix))).c_str());
    return fmt::format("{} does not count any more: see {}", address_of(name), note);
  }
  std::error_code ec;
  const std::string to = free_name(fmt::format("{}{}", name, suffix),
                                   [&](const std::string& n) { return fs::exists(fs::symlink_status(dir_ / n, ec)); });
  fs::rename(dir_ / name, dir_ / to, ec);
  if (ec) throw failure(fmt::format("{} could not be set aside: {}", address_of(name), ec.message()));
  return fmt::format("{} is now {}", address_of(name), to);
}

std::string LocalTarget::set_all_aside() { return set_folder_aside(dir_).string(); }

std::optional<uint64_t> LocalTarget::free_bytes() const {
  const auto space = space_at(dir_);
  return space ? std::optional<uint64_t>(space->available) : std::nullopt;
}

}  // namespace mythos
