#include "base/crc32.h"

#include <array>
#include <cstring>

namespace mythos {
namespace {

// Eight bytes at once: table k holds the remainder of a byte followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1U) != 0 ? 0xEDB88320U ^ (c >> 1) : c >> 1;
    t[0][i] = c;
  }
  for (size_t k = 1; k < t.size(); ++k) {
    for (size_t i = 0; i < 256; ++i) t[k][i] = t[0][t[k - 1][i] & 0xFFU] ^ (t[k - 1][i] >> 8);
  }
  return t;
}

constexpr Tables tables = make_tables();

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t so_far) {
  uint32_t c = ~so_far;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, sizeof(word));
    word ^= c;
    c = 0;
    for (size_t k = 0; k < 8; ++k) c ^= tables[7 - k][(word >> (8 * k)) & 0xFFU];
  }
  for (; n > 0; --n, ++p) c = tables[0][(c ^ static_cast<uint32_t>(*p)) & 0xFFU] ^ (c >> 8);
  return ~c;
}

}  // namespace mythos
