#include "cli/line_editor.h"

#include "base/signals.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

constexpr int remembered_lines = 1000;

std::string history_path() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  fs::path state = set("XDG_STATE_HOME");
  if (!state.is_absolute()) {
    const std::string home = set("HOME");
    if (home.empty()) return "";
    state = fs::path(home) / ".local/state";
  }
  return (state / "mythos/history").string();
}

}  // namespace

LineEditor::LineEditor() : terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (!terminal_) return;
  using_history();
  stifle_history(remembered_lines);
  history_file_ = history_path();
  if (!history_file_.empty()) read_history(history_file_.c_str());
}

LineEditor::~LineEditor() {
  if (!terminal_ || history_file_.empty()) return;
  std::error_code ec;
  fs::create_directories(fs::path(history_file_).parent_path(), ec);
  if (!ec) write_history(history_file_.c_str());
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }
  char* typed = readline(prompt.c_str());
  if (typed == nullptr || stop_requested()) {
    std::free(typed);
    std::cout << std::endl;
    return std::nullopt;
  }
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) add_history(line.c_str());
  return line;
}

}  // namespace mythos::cli
