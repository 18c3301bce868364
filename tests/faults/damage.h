// What happens to a file's bytes on a bad disk.
#pragma once

#include "faulty_run.h"

#include "base/random.h"

namespace mythos::testing {

enum class Damage { bit_flip, cut, block };

/// Damages the file at a random place and says how.
inline std::string damage(const fs::path& path, Damage kind, Random& random) {
  const auto size = static_cast<uint64_t>(fs::file_size(path));
  if (size == 0) return "nothing: it is empty";
  const uint64_t at = random.below(size);
  if (kind == Damage::bit_flip) {
    const auto bit = static_cast<int>(random.below(8));
    flip_bit(path, at, bit);
    return fmt::format("bit {} of byte {} flipped", bit, at);
  }
  if (kind == Damage::cut) {
    fs::resize_file(path, at);
    return fmt::format("cut to {} bytes", at);
  }
  const uint64_t length = std::min<uint64_t>(512, size - at);
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekp(static_cast<std::streamoff>(at));
  for (uint64_t i = 0; i < length; ++i) f.put(static_cast<char>(random.below(256)));
  return fmt::format("{} bytes from byte {} overwritten", length, at);
}

}  // namespace mythos::testing
