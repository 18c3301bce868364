// What the tests of remote files share: a server in its own process, files with known bytes, environment variables.
#pragma once

#include "../support/hub_server.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "storage/http_options.h"
#include "storage/storage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mythos::test {
namespace fs = std::filesystem;

inline constexpr std::array<std::string_view, 5> kinds{".txt", ".jsonl", ".jsonl.gz", ".parquet", ".bin"};
inline const std::string commit_of_server = "0123456789abcdef0123456789abcdef01234567";

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "mythos-storage-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] fs::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const fs::path& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const {
    fs::create_directories((path_ / name).parent_path());
    write_file_atomically(path_ / name, text);
  }

 private:
  fs::path path_;
};

/// Sets a variable (or unsets it) as long as it lives.
class Variable {
 public:
  Variable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> old_;
};

inline std::string random_bytes(size_t n, uint64_t seed) {
  Random random(seed);
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; i += 8) {
    const uint64_t next = random.next();
    std::memcpy(bytes.data() + i, &next, std::min<size_t>(8, n - i));
  }
  return bytes;
}

/// Short waits, so that a test of many takes no time. Where a stall is to be noticed, a test sets stall_seconds.
inline HttpOptions fast() {
  HttpOptions options;
  options.first_backoff = 0.01;
  options.most_backoff = 0.05;
  options.contact_patience = options.read_patience = 120;  // the machine may be busy
  options.seed = 1;
  return options;
}

/// Tests around one server for all of them; each begins with it as it was at the start.
class ServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    server_ = std::make_unique<Server>(folder_->path());
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  void SetUp() override { server_->reset(); }

  static inline std::unique_ptr<TempFolder> folder_;
  static inline std::unique_ptr<Server> server_;
};

/// What is logged while it lives.
class LogLines {
 public:
  LogLines() {
    log::set_file(folder_ / "log");
    log::set_quiet(true);
  }
  ~LogLines() {
    log::set_file({});
    log::set_quiet(false);
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  [[nodiscard]] std::string text() const { return read_file(folder_ / "log"); }

 private:
  TempFolder folder_;
};

/// A fresh environment for the hub: nothing of the machine's own.
class HubEnvironment {
 public:
  explicit HubEnvironment(const std::string& endpoint, const std::string& token = "") {
    const auto set = [this](const char* name, const std::optional<std::string>& value) {
      variables_.push_back(std::make_unique<Variable>(name, value));
    };
    set("HF_ENDPOINT", endpoint);
    set("HF_TOKEN", token.empty() ? std::nullopt : std::optional(token));
    set("HF_HOME", home_.path().string());
    for (const char* name : {"HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
                             "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "https_proxy", "HTTPS_PROXY",
                             "all_proxy", "ALL_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
      set(name, std::nullopt);
    }
  }
  [[nodiscard]] const TempFolder& home() const { return home_; }

 private:
  TempFolder home_;
  std::vector<std::unique_ptr<Variable>> variables_;
};

/// All of a file, in parts of `part` bytes.
inline std::string read_all(const ByteSource& source, size_t part = SIZE_MAX) {
  std::string bytes(source.size(), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min(part, bytes.size() - at);
    source.read_at(at, std::as_writable_bytes(std::span(bytes).subspan(at, n)));
    at += n;
  }
  return bytes;
}

/// The message and hint of the Error that `work` throws; "" if it throws none.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.line();
  }
  return "";
}

inline double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline std::vector<std::string> names_of(const std::vector<SourceFile>& files) {
  std::vector<std::string> names;
  for (const SourceFile& file : files) names.push_back(file.name);
  return names;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline bool has_not(const std::string& text, const std::string& part) { return !has(text, part); }
#define EXPECT_HAS(text, part) EXPECT_PRED2(has, text, part)
#define EXPECT_HAS_NOT(text, part) EXPECT_PRED2(has_not, text, part)

}  // namespace mythos::test
