// Patterns of paths in a repository.
#pragma once

#include <string>
#include <string_view>

namespace mythos {

/// Whether the text has a wildcard: `*`, `?` or `[`.
bool is_pattern(std::string_view text);
/// The folder all matches of a pattern lie in: what stands before the last slash before its first wildcard.
std::string fixed_folder(std::string_view pattern);
/// `*` any run of characters in one name, `?` one, `[a-c]` and `[!a-c]` one of a set, `**` any number of folders. In
/// time bounded by the product of both lengths.
bool matches_pattern(std::string_view path, std::string_view pattern);

}  // namespace mythos
