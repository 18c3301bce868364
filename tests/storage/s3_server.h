// A real S3 server for tests: moto in a process of its own (s3_server.py says what it can be told).
#pragma once

#include "base/json.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace mythos::test {

class S3Server {
 public:
  /// Empty if it can run here, else what is missing.
  static std::string missing() {
    for (const char* part : {"/moto/stamp", "/python3.11"}) {
      const std::string path = std::string(MYTHOS_DEPS_DIR) + part;
      if (!std::filesystem::exists(path)) return path + " is missing: run scripts/setup --test";
    }
    return "";
  }

  S3Server() {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const std::string python = std::string(MYTHOS_DEPS_DIR) + "/python3.11";
    const std::string path = std::string(MYTHOS_DEPS_DIR) + "/moto";
    const std::string script = std::string(MYTHOS_TEST_DIR) + "/storage/s3_server.py";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "AWS_PROFILE"}) ::unsetenv(name);
      ::setenv("PYTHONPATH", path.c_str(), 1);
      ::execl(python.c_str(), python.c_str(), "-W", "ignore", script.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = ::fdopen(to[1], "w");
    from_ = ::fdopen(from[0], "r");
    port_ = answer().at("port").get<int>();
  }
  ~S3Server() {
    std::fclose(to_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::fclose(from_);
  }
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  [[nodiscard]] std::string address() const { return "http://127.0.0.1:" + std::to_string(port_); }

  Json ask(const Json& command) {
    const std::string line = command.dump() + "\n";
    std::fputs(line.c_str(), to_);
    std::fflush(to_);
    Json reply = answer();
    if (reply.is_object() && reply.contains("error")) throw std::runtime_error(reply.dump());
    return reply;
  }
  void put(const std::string& bucket, const std::string& key, const std::string& text, bool is_public = false) {
    Json command{{"do", "put"}, {"bucket", bucket}, {"key", key}, {"text", text}};
    if (is_public) command["acl"] = "public-read";
    ask(command);
  }

 private:
  Json answer() {
    std::string line;
    for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
      if (c == EOF) throw std::runtime_error("the S3 server ended: " + line);
      line += static_cast<char>(c);
    }
    return Json::parse(line);
  }

  pid_t pid_ = -1;
  int port_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace mythos::test
