#include "base/log.h"

#include "base/append_file.h"
#include "base/error.h"
#include "base/log_watcher.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace mythos::log {
namespace {

struct State {
  std::mutex mutex;
  AppendFile file;
  bool keeping = false;
  std::string kept;
  bool quiet = false;
  std::string prefix;
  std::function<void(std::string_view)> watcher;
  std::string live;
};

State& state() {
  static State s;
  return s;
}

// A log must not end the run: what cannot be written (a full disk, a closed terminal) is dropped here.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string cut_to_width(std::string_view text) {
  winsize size{};
  size_t width = 100;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) width = size.ws_col - 1U;
  if (text.size() > width) {
    while (width > 0 && (static_cast<unsigned char>(text[width]) & 0xC0) == 0x80) --width;  // not within a character
  }
  return std::string(text.substr(0, width));
}

}  // namespace

bool is_terminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

void write(Level level, std::string_view line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  std::string text;
  if (level == Level::warning) text += "warning: ";
  if (level == Level::error) text += "error: ";
  if (level != Level::info) text += s.prefix;
  // Names and samples may hold anything: what would steer a terminal is spelled out.
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  text += '\n';
  if (!s.quiet || level != Level::info) {
    if (!s.live.empty()) write_all(STDERR_FILENO, "\r\033[K");
    write_all(STDERR_FILENO, text);
    if (!s.live.empty()) write_all(STDERR_FILENO, cut_to_width(s.live));
  }
  s.file.write(text);
  if (level == Level::warning && s.watcher) s.watcher(line);
  if (s.keeping && s.kept.size() + text.size() <= (size_t{1} << 20)) s.kept += text;
}

void set_file(const std::filesystem::path& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.file = AppendFile();
  s.keeping = false;
  const std::string kept = std::exchange(s.kept, {});
  if (path.empty()) return;
  s.file = AppendFile(path);
  s.file.write(kept);
}

void keep_for_file() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.keeping = true;
  s.kept.clear();
}

void set_prefix(std::string_view prefix) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.prefix = prefix;
}

void set_watcher(std::function<void(std::string_view)> watcher) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.watcher = std::move(watcher);
}

void set_quiet(bool quiet) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.quiet = quiet;
}

void live_line(std::string_view text) {
  if (!is_terminal()) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.quiet) return;
  if (!s.live.empty() || !text.empty()) write_all(STDERR_FILENO, "\r\033[K");
  s.live = text;
  if (!s.live.empty()) write_all(STDERR_FILENO, cut_to_width(s.live));
}

}  // namespace mythos::log
