// Where bytes come from: one interface that Parquet and line readers read through, whatever holds the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

  /// What a message calls it.
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Fills `into` with the bytes at `offset`; never less. Throws Error where they cannot be had.
  virtual void read_at(uint64_t offset, std::span<std::byte> into) const = 0;
};

/// One file of a source as it was listed.
struct SourceFile {
  std::string location;  ///< what open_file takes
  std::string name;      ///< the same on every machine: the path inside the folder, or the file's own name
  uint64_t size = 0;     ///< bytes
};

/// The files of `source`: a file, a folder (files with one of the `extensions`, at any depth; names that begin with a
/// dot and linked folders are left out) or a glob pattern as the shell's (`*`, `?`, `[..]`; a folder it matches counts
/// with its files). Sorted by the bytes of the path. Extensions have their dot (".txt"). Throws a usage error if the
/// path is missing, the pattern matches nothing, or no file has a supported extension.
std::vector<SourceFile> list_files(const std::string& source, std::span<const std::string_view> extensions);

/// Opens a listed file. Throws Error if it cannot be opened or its size is not the listed one any more.
std::shared_ptr<const ByteSource> open_file(const SourceFile& file);

/// The lower-case extension of a path with its dot (".txt"), or "".
std::string file_extension(std::string_view path);

}  // namespace mythos
