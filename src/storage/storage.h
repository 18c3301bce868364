// Everything outside the program that text and tokenizers come from: one door for paths and addresses.
#pragma once

#include "storage/byte_source.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// Whether a source is an address ("hf://...") and not a path.
bool is_address(std::string_view source);

/// Thread-safe. Nothing is contacted before the first list, open or read.
class Storage {
 public:
  Storage();
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// The files of a source with one of the `extensions` (each with its dot: ".txt", ".jsonl.gz"), sorted by the bytes
  /// of their names. Throws a usage error for what cannot be a source.
  std::vector<SourceFile> list(const std::string& source, std::span<const std::string_view> extensions);
  /// Opens a listed file. Throws Error if it cannot be opened or is not the listed one any more.
  std::shared_ptr<const ByteSource> open(const SourceFile& file);

  /// The content of a file by path or address, at most `max_bytes` of it (more is an Error). Files of the hub are kept
  /// in its cache, so that a second start needs no download.
  std::string read(const std::string& address, uint64_t max_bytes);
  /// How long a source that cannot be reached is waited for once reading has begun, in seconds.
  void set_patience(double seconds);

  /// Uses these commits for repositories instead of asking for the newest: what commits() gave in an earlier run.
  void pin(const std::map<std::string, std::string>& commits);
  /// The commits of the repositories used so far: {"hf://datasets/OWNER/NAME@main": "40 hex digits"}.
  [[nodiscard]] std::map<std::string, std::string> commits() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mythos
