// Lines from standard input: edited and remembered at a terminal, plain elsewhere.
#pragma once

#include <optional>
#include <string>

namespace mythos::cli {

class LineEditor {
 public:
  /// Reads the history of earlier sessions, where there is one: $XDG_STATE_HOME/mythos/history, or
  /// ~/.local/state/mythos/history.
  LineEditor();
  /// Writes it back, at most 1,000 lines.
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next line without its end; nothing at the end of input, and after an interrupt. `prompt` is shown at a
  /// terminal.
  std::optional<std::string> read(const std::string& prompt);
  [[nodiscard]] bool is_terminal() const { return terminal_; }

 private:
  bool terminal_ = false;
  std::string history_file_;
};

}  // namespace mythos::cli
