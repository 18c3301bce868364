// The program's log: plain lines to stderr and, once a run has a folder, to its log.txt as well.
// Results go to stdout by themselves; nothing here ever writes there.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace mythos::log {

enum class Level { info, warning, error };

/// Writes one line. Warnings and errors carry their level in front; info lines are printed as they are.
/// Thread-safe; clears and redraws a live progress line on a terminal.
void write(Level level, std::string_view line);

/// Also append every line to this file (created if missing); an empty path stops that. Throws Error if it cannot open.
void set_file(const std::filesystem::path& path);
/// Keeps the lines from now on (the first megabyte of them) until set_file, which writes them first: for what is said
/// before it is known whether there will be a file.
void keep_for_file();
/// What warnings and errors begin with, behind their level: who says it, where several processes share a terminal.
void set_prefix(std::string_view prefix);
/// No info lines on stderr (warnings and errors stay).
void set_quiet(bool quiet);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

/// A single line that is overwritten in place when stderr is a terminal, and not shown otherwise.
/// An empty text removes it.
void live_line(std::string_view text);
/// Whether stderr is a terminal, so that live_line shows.
bool is_terminal();

}  // namespace mythos::log
