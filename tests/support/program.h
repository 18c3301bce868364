// Runs the program as a user does: its own process, its output read through files.
#pragma once

#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mythos::testing {

/// A program that was started; killed and waited for at the latest when this goes away.
class Program {
 public:
  struct Options {
    std::filesystem::path folder = std::filesystem::temp_directory_path();  ///< where its output is kept
    std::filesystem::path input = "/dev/null";
    std::filesystem::path working_folder;
    std::vector<std::pair<std::string, std::string>> environment;
    std::string program = MYTHOS_BINARY;
  };

  explicit Program(std::vector<std::string> arguments) : Program(std::move(arguments), Options()) {}
  Program(std::vector<std::string> arguments, const Options& options) {
    std::string name = (options.folder / "program_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    folder_ = name;
    const std::string out = folder_ / "out";
    const std::string err = folder_ / "err";
    arguments.insert(arguments.begin(), options.program);
    std::vector<char*> argv;
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGPIPE}) ::signal(number, SIG_DFL);
      ::setenv("GOMP_SPINCOUNT", "0", 1);
      for (const auto& [key, value] : options.environment) ::setenv(key.c_str(), value.c_str(), 1);
      if (!options.working_folder.empty() && ::chdir(options.working_folder.c_str()) != 0) ::_exit(126);
      const int in = ::open(options.input.c_str(), O_RDONLY);
      ::dup2(in, 0);
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Program() {
    if (!ended_) {
      signal(SIGKILL);
      wait();
    }
    std::error_code ec;
    std::filesystem::remove_all(folder_, ec);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Its exit code; 128 + n if signal n ended it.
  int wait() {
    if (ended_) return code_;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return note(status);
  }
  /// Whether it has ended.
  bool ended() {
    int status = 0;
    if (!ended_ && ::waitpid(pid_, &status, WNOHANG) == pid_) note(status);
    return ended_;
  }
  /// Whether the condition came true before the program's end (or a minute).
  bool wait_until(const std::function<bool()>& condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
      if (ended() || std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) return condition();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  [[nodiscard]] std::string out() const { return read_file(folder_ / "out"); }
  [[nodiscard]] std::string err() const { return read_file(folder_ / "err"); }

 private:
  int note(int status) {
    ended_ = true;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::filesystem::path folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
};

struct Outcome {
  int code = -1;
  std::string out, err;
};
inline Outcome run_program(std::vector<std::string> arguments, const Program::Options& options = {}) {
  Program program(std::move(arguments), options);
  Outcome outcome;
  outcome.code = program.wait();
  outcome.out = program.out();
  outcome.err = program.err();
  return outcome;
}

}  // namespace mythos::testing
