// Everything outside the program that text and tokenizers come from: one door for paths and addresses.
#pragma once

#include "storage/byte_source.h"
#include "storage/http_options.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// Whether a source is an address ("hf://...") and not a path.
bool is_address(std::string_view source);
/// A source as messages and files may show it: without the secrets that an http address can hold.
std::string shown_source(std::string_view source);

/// Thread-safe. Nothing is contacted before the first list, open or read.
class Storage {
 public:
  Storage();
  explicit Storage(const HttpOptions& options);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// The files of a source with one of the `extensions` (each with its dot: ".txt", ".jsonl.gz"), sorted by the bytes
  /// of their names. Throws a usage error for what cannot be a source.
  std::vector<SourceFile> list(const std::string& source, std::span<const std::string_view> extensions);
  /// Opens a listed file. Throws Error if it cannot be opened or is not the listed one any more.
  std::shared_ptr<const ByteSource> open(const SourceFile& file);
  /// The content of one small file: a path, an http address or hf://OWNER/NAME/FILE. What comes from the hub is kept in
  /// its cache on this machine. Throws Error, also if it is larger than `max_bytes`.
  std::string read(const std::string& address, uint64_t max_bytes);

  /// Uses these commits for repositories instead of asking for the newest: what commits() gave in an earlier run.
  void pin(const std::map<std::string, std::string>& commits);
  /// The commits of the repositories used so far: {"hf://datasets/OWNER/NAME@main": "40 hex digits"}.
  [[nodiscard]] std::map<std::string, std::string> commits() const;

  /// How many seconds a read is tried without getting on before it fails (HttpOptions::read_patience).
  void set_patience(double seconds);
  /// How many seconds looking a source up is tried (HttpOptions::contact_patience). Before anything is contacted.
  void set_contact_patience(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mythos
