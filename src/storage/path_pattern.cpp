#include "storage/path_pattern.h"

#include <vector>

namespace mythos {
namespace {

// The length of the pattern's element that stands at its begin, and whether it takes `c`.
struct One {
  size_t length = 1;
  bool takes = false;
};

One element(std::string_view pattern, char c) {
  if (pattern[0] == '?') return {1, c != '/'};
  if (pattern[0] == '[') {
    size_t i = 1;
    const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
    if (negated) ++i;
    const size_t first = i;
    bool found = false;
    for (; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
      if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
        found = found || (pattern[i] <= c && c <= pattern[i + 2]);
        i += 2;
      } else {
        found = found || pattern[i] == c;
      }
    }
    if (i < pattern.size()) return {i + 1, c != '/' && found != negated};
    // A bracket that is not closed is itself.
  }
  return {1, pattern[0] == c};
}

}  // namespace

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::string fixed_folder(std::string_view pattern) {
  const std::string_view fixed = pattern.substr(0, pattern.find_first_of("*?["));
  const size_t slash = fixed.rfind('/');
  return slash == std::string_view::npos ? "" : std::string(fixed.substr(0, slash));
}

bool matches_pattern(std::string_view path, std::string_view pattern) {
  // reached[i]: the pattern so far takes the first i characters.
  std::vector<char> reached(path.size() + 1, 0);
  std::vector<char> next(path.size() + 1, 0);
  reached[0] = 1;
  for (size_t p = 0; p < pattern.size();) {
    if (pattern[p] == '*') {
      size_t stars = 0;
      while (p + stars < pattern.size() && pattern[p + stars] == '*') ++stars;
      const bool across = stars >= 2;
      p += stars;
      // "**/" also stands for no folder at all.
      const bool no_folder = across && p < pattern.size() && pattern[p] == '/';
      if (no_folder) ++p;
      char open = 0;
      for (size_t i = 0; i <= path.size(); ++i) {
        if (no_folder) {
          next[i] = static_cast<char>(reached[i] != 0 || (i > 0 && path[i - 1] == '/' && open != 0));
          open = static_cast<char>(open != 0 || reached[i] != 0);
        } else {
          if (!across && i > 0 && path[i - 1] == '/') open = 0;
          open = static_cast<char>(open != 0 || reached[i] != 0);
          next[i] = open;
        }
      }
    } else {
      const size_t length = element(pattern.substr(p), '\0').length;
      next[0] = 0;
      for (size_t i = 0; i < path.size(); ++i) {
        next[i + 1] = static_cast<char>(reached[i] != 0 && element(pattern.substr(p), path[i]).takes);
      }
      p += length;
    }
    reached.swap(next);
  }
  return reached[path.size()] != 0;
}

}  // namespace mythos
