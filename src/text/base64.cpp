#include "text/base64.h"

#include <array>
#include <cstdint>

namespace mythos {

namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> value_of = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < alphabet.size(); ++i) values[static_cast<unsigned char>(alphabet[i])] = static_cast<int8_t>(i);
  return values;
}();

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = bytes.size() - i < 3 ? bytes.size() - i : 3;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < n ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) out.push_back(j <= n ? alphabet[group >> (18 - 6 * j) & 63] : '=');
  }
  return out;
}

bool base64_decode(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    size_t n = 4;
    if (i + 4 == text.size()) {
      while (n > 2 && text[i + n - 1] == '=') --n;
    }
    uint32_t group = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int v = j < n ? value_of[static_cast<unsigned char>(text[i + j])] : 0;
      if (v < 0) return false;
      group = group << 6 | static_cast<uint32_t>(v);
    }
    if ((group & ((1u << 8 * (4 - n)) - 1)) != 0) return false;
    for (size_t j = 0; j + 1 < n; ++j) bytes.push_back(static_cast<char>(group >> (16 - 8 * j) & 255));
  }
  return true;
}

}  // namespace mythos
