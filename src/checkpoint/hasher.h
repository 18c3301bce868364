// XXH3-64 (https://github.com/Cyan4973/xxHash), and its value as files hold it.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace mythos {

class Hasher {
 public:
  Hasher() { XXH3_64bits_reset(&state_); }
  void add(const void* data, size_t size) { XXH3_64bits_update(&state_, data, size); }
  [[nodiscard]] uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_{};
};

/// 16 hexadecimal digits in lower case.
inline std::string hash_text(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace mythos
