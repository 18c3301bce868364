// .pt files for tests: archives around pickles made by hand.
#pragma once

#include "checkpoint/pickle_writer.h"
#include "checkpoint/zip_writer.h"
#include "support.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos::testing {

inline void write_archive(const fs::path& path, const std::vector<std::pair<std::string, std::string>>& entries) {
  ZipWriter zip(path, 0);
  for (const auto& [name, data] : entries) zip.add(name, data);
  zip.commit();
}
inline void write_pt(const fs::path& path, const std::string& pickle,
                     std::vector<std::pair<std::string, std::string>> entries = {}) {
  entries.insert(entries.begin(), {"x/data.pkl", pickle});
  write_archive(path, entries);
}
inline void write_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A whole number of `T` in the order of bytes that pickles and archives have.
template <class T>
std::string little(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
  return out;
}

}  // namespace mythos::testing
