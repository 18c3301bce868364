// Errors a person reads: one sentence saying what and where, a hint saying what to do, and the exit code that follows.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace mythos {

/// Exit codes of every command. A run stopped by signal n after saving exits with 128 + n.
enum class ExitCode : int {
  done = 0,
  failed = 1,   ///< something went wrong while working
  usage = 2,    ///< wrong usage or configuration; nothing was started
  refused = 3,  ///< refused beforehand: disk, memory, budget
};

class Error : public std::runtime_error {
 public:
  /// `what`: one clear sentence. `hint`: what to do about it (may be empty).
  Error(ExitCode code, const std::string& what, std::string hint = "")
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}

  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& hint() const noexcept { return hint_; }
  /// "what (hint)" or "what" alone: the one line shown to a person.
  [[nodiscard]] std::string line() const { return hint_.empty() ? what() : fmt::format("{} ({})", what(), hint_); }

 private:
  ExitCode code_;
  std::string hint_;
};

/// An error while working: exit 1.
inline Error failure(const std::string& what, std::string hint = "") {
  return {ExitCode::failed, what, std::move(hint)};
}
/// Wrong usage or configuration: exit 2.
inline Error usage_error(const std::string& what, std::string hint = "") {
  return {ExitCode::usage, what, std::move(hint)};
}
/// Refused before starting: exit 3.
inline Error refusal(const std::string& what, std::string hint = "") {
  return {ExitCode::refused, what, std::move(hint)};
}

}  // namespace mythos
