// A file that grows by whole pieces (lines, records) while others read it, rotate it or fill the disk.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mythos {

/// What is appended is in the file at once, for this process's own end does not take it away: nothing is buffered here.
/// Where the file was renamed or removed (a log rotation), the next piece begins a new one under the old name, so that
/// nothing is written to a file that is about to be compressed or deleted. Movable, not thread-safe.
class AppendFile {
 public:
  AppendFile() = default;
  /// Opens or creates it. Throws Error "cannot write PATH: REASON".
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Appends all of it, or nothing: what a full disk took a part of is cut off again. Returns "", or why not. Without a
  /// file nothing happens.
  std::string write(std::string_view text);

 private:
  void follow_name();

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace mythos
