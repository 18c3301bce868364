// What the tokenizer tests share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "text/tokenizer.h"

namespace mythos::testing {

/// A fresh folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("mythos_text_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// Writes a file and gives its path.
  std::filesystem::path file(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path o200k_path() { return std::filesystem::path(MYTHOS_SITE_DIR) / "o200k_base.tiktoken"; }

/// The o200k tokenizer, loaded once.
inline const Tokenizer& o200k() {
  static const Tokenizer tokenizer = Tokenizer::load(o200k_path());
  return tokenizer;
}

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};
inline std::vector<Vector> read_vectors(const std::string& name) {
  std::vector<Vector> vectors;
  std::ifstream in(std::filesystem::path(MYTHOS_TEST_DIR) / "text" / name);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    vectors.push_back({json["text"], json["ids"]});
  }
  return vectors;
}

/// The bytes of an id in the alphabet of byte-level tokenizer.json files.
inline std::string byte_level(std::string_view bytes) {
  static const std::vector<std::string> letters = [] {
    std::vector<std::string> all(256);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const uint32_t code = itself ? b : next++;
      if (code < 0x80) {
        all[b] = static_cast<char>(code);
      } else {
        all[b] = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
      }
    }
    return all;
  }();
  std::string text;
  for (const char c : bytes) text += letters[static_cast<unsigned char>(c)];
  return text;
}

/// A vocabulary of the 256 bytes (ids 0 to 255) and these further tokens, merging by id.
inline Vocabulary small_vocabulary(const std::vector<std::string>& more, std::string pattern) {
  Vocabulary v;
  v.pattern = std::move(pattern);
  for (int b = 0; b < 256; ++b) v.ordinary.push_back(std::string(1, static_cast<char>(b)));
  v.ordinary.insert(v.ordinary.end(), more.begin(), more.end());
  v.n_ordinary = static_cast<int64_t>(v.ordinary.size());
  return v;
}

/// The error's whole line, or "" if nothing was thrown.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.line();
  }
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

inline std::string random_bytes(Random& random, size_t n) {
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(random.below(256));
  return bytes;
}

}  // namespace mythos::testing
