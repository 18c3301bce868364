// Files that are either whole or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace mythos {

/// Reads a whole regular file (those of /proc and /sys too). Throws Error naming the path and the reason; refuses files
/// above `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = UINT64_C(1) << 34);

/// A read-only memory map of a file; empty files give an empty span. Throws Error naming the path and the reason.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Keeps a large file that is being written from filling memory with pages nobody will read: what was written is sent
/// to the disk at once, a few MiB at a time, and then dropped. Does nothing for small files, and where the system
/// cannot.
class WriteBehind {
 public:
  /// `size`: bytes written so far.
  void wrote(int fd, uint64_t size);

 private:
  uint64_t sent_ = 0, dropped_ = 0;
};

/// Writes beside the target under a temporary name (".NAME.tmp-PID", or ".NAME.tmp-PID-N" where that one is in use),
/// which it keeps locked; commit() syncs it, renames it over the target and syncs the folder. Without commit() the
/// temporary file is removed and the target is untouched. Every function throws Error naming the target, the reason
/// and, for a full disk, what to do.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Overwrites bytes written before; never moves the end.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// Sets space for the first `bytes` aside, so that a full disk shows before they are written; a file system that
  /// cannot do that is left alone.
  void reserve(uint64_t bytes);
  /// For large files: see WriteBehind. To be called after every few MiB.
  void pace() { behind_.wrote(fd_, size_); }
  /// The file has so many bytes, zeros where nothing was written, with space for all of them where the file system can
  /// set it aside.
  void grow(uint64_t bytes);
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Makes the file whole under its real name; to be called once, and no write after it.
  void commit();

 private:
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;
  WriteBehind behind_;
};

/// Writes a small file through AtomicFile.
void write_file_atomically(const std::filesystem::path& target, std::string_view text);

/// Creates a folder and its parents, or throws Error with the reason and hint.
void make_folder(const std::filesystem::path& path);

/// Moves a folder out of the way: DIR.1, DIR.2, ... the first free name, which is returned. Throws Error.
std::filesystem::path set_folder_aside(const std::filesystem::path& dir);

/// The path itself if it is there, else the nearest folder above it that is.
std::filesystem::path nearest_existing(const std::filesystem::path& path);
/// The space of the file system where `path` is or will be; nothing where that does not tell.
std::optional<std::filesystem::space_info> space_at(const std::filesystem::path& path);

/// Removes temporary files that killed processes left in `folder` (see AtomicFile); those of living ones stay, this
/// process's own included. Never throws for what it cannot read or remove.
void remove_stale_temporaries(const std::filesystem::path& folder);

}  // namespace mythos
