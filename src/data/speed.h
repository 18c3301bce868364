// How fast text comes in: FineWeb-shaped Parquet from a web server on this machine, tokenized and packed.
#pragma once

#include "base/json.h"
#include "data/options.h"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mythos {

/// Documents of realistic lengths (median about 3,000 bytes, a long tail) joined from `paragraphs` in seeded order,
/// until `bytes` of text are there. Paragraphs must not be empty.
std::vector<std::string> make_documents(const std::vector<std::string>& paragraphs, uint64_t bytes, uint64_t seed);

/// Writes `documents` as FineWeb-Edu is published: columns text, id, dump, url, file_path, language, language_score,
/// token_count, score, int_score; row groups of 1,000; snappy; `files` files named sample/10BT/000_00000.parquet on.
void write_fineweb_shaped(const std::filesystem::path& folder, const std::vector<std::string>& documents, int files);

/// nginx serving a folder with an index on a free port of the loopback address as long as it lives.
class LocalServer {
 public:
  /// Throws Error if there is no nginx, with the package to install, or it does not start.
  explicit LocalServer(const std::filesystem::path& folder);
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  /// "http://127.0.0.1:PORT"
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void stop();

  std::filesystem::path work_;
  std::string address_;
  pid_t process_ = -1;
};

struct StreamSpeed {
  int64_t tokens = 0;      ///< packed into rows
  int64_t text_bytes = 0;  ///< that they come from
  double seconds = 0;
  double cpu_seconds = 0;  ///< of this process, all threads
  double waited = 0;       ///< by the reader of rows

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] double cores() const { return cpu_seconds / seconds; }
  [[nodiscard]] double tokens_per_core_second() const { return static_cast<double>(tokens) / cpu_seconds; }
};
/// Reads options.sources once (options.epochs) as training does, as fast as rows come.
StreamSpeed measure_stream(const DataOptions& options, const Encoder& encoder);
/// The same text through the tokenizer alone, on one thread: what packing cannot be faster than.
StreamSpeed measure_encoding(const std::vector<std::string>& documents, const Encoder& encoder);
Json to_json(const StreamSpeed& speed);

}  // namespace mythos
