// A hub and its file host on loopback, in a process of its own.
#pragma once

#include "base/json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace mythos::test {
namespace fs = std::filesystem;

/// tests/storage/server.py, ended with this.
class Server {
 public:
  explicit Server(const fs::path& root, const std::vector<std::string>& more = {}) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> words{"python3", "-B", MYTHOS_TEST_DIR "/storage/server.py", root.string()};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = ::fdopen(out[0], "r");
    ports_ = line();
  }
  ~Server() {
    ::close(to_);
    ::fclose(from_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Json command(const Json& json) {
    const std::string text = json.dump() + "\n";
    if (::write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) throw std::runtime_error("server");
    return line();
  }
  void fault(Json fault) { command({{"fault", std::move(fault)}}); }
  void set(const std::string& name, const Json& value) { command({{"set", {{name, value}}}}); }
  Json log() { return command({{"log", true}}); }
  void reset() { command({{"reset", true}}); }

  [[nodiscard]] int port(const std::string& origin) const { return ports_.at(origin).get<int>(); }
  [[nodiscard]] std::string url(const std::string& path, const std::string& origin = "hub") const {
    return fmt::format("{}://127.0.0.1:{}{}", origin == "tls" ? "https" : "http", port(origin), path);
  }

 private:
  Json line() {
    std::string text;
    for (int c = 0; (c = std::fgetc(from_)) != '\n';) {
      if (c == EOF) throw std::runtime_error("the test's server has ended");
      text += static_cast<char>(c);
    }
    return Json::parse(text);
  }
  pid_t pid_ = -1;
  int to_ = -1;
  FILE* from_ = nullptr;
  Json ports_;
};

}  // namespace mythos::test
