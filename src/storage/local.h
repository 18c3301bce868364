// Files of this machine: what Storage does with paths.
#pragma once

#include "storage/byte_source.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// The files of `source`: a file, a folder (files with one of the `extensions`, at any depth; names that begin with a
/// dot and linked folders are left out) or a glob pattern as the shell's (`*`, `?`, `[..]`; a folder it matches counts
/// with its files). Sorted by the bytes of the path. Throws a usage error if the path is missing, the pattern matches
/// nothing, or no file has a supported extension.
std::vector<SourceFile> list_local_files(const std::string& source, std::span<const std::string_view> extensions);

/// Throws Error if it cannot be opened or its size is not the listed one any more.
std::shared_ptr<const ByteSource> open_local_file(const SourceFile& file);

}  // namespace mythos
