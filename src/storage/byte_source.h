// Where bytes come from: one interface that Parquet and line readers read through, whatever holds the file.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// A file of known size that can be read at any offset, from any thread.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// What a message calls it; never with a secret in it.
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Whether bytes come over a network: then few large reads, begun early, are better than many small ones.
  [[nodiscard]] virtual bool is_remote() const { return false; }
  /// Fills `into` with the bytes at `offset`; never less. Throws Error where they cannot be had, and Stopped as soon as
  /// `stop` or a signal asks for it.
  virtual void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop = {}) const = 0;
};

/// A read that was given up because somebody asked for it.
class Stopped : public Error {
 public:
  explicit Stopped(const std::string& what) : Error(ExitCode::failed, what) {}
};

/// One file of a source as it was listed.
struct SourceFile {
  std::string location;  ///< what Storage::open takes: a path or an address
  std::string name;      ///< the same on every machine: the path inside the folder, or the file's own name
  uint64_t size = 0;     ///< bytes
  std::string version;   ///< changes with the content: an ETag or a hash; empty for local files
};

/// The lower-case extension of a path or address with its dot (".txt"), or "". What follows a '?' in an address does
/// not count. Of a compressed file both: ".jsonl.gz".
std::string file_extension(std::string_view path);

/// The same file, to be read once from `offset` on, front to back, for `size` bytes: what is remote is fetched in the
/// background from now on, in pieces, a few ahead. Other reads of the returned source go to `source` itself. A local
/// source is returned as it is.
std::shared_ptr<const ByteSource> read_ahead(std::shared_ptr<const ByteSource> source, uint64_t offset, uint64_t size);

}  // namespace mythos
