#include "text/unicode.h"

#include <algorithm>
#include <map>

namespace mythos {

namespace {

constexpr uint32_t ranges[] = {
#include "text/unicode_ranges.inc"
};

}  // namespace

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

CharClasses::CharClasses() {
  std::map<std::string, uint16_t> known;
  std::string classes(256, '\0');
  size_t range = 0;
  for (uint32_t block = 0; block < block_of_.size(); ++block) {
    for (uint32_t i = 0; i < 256;) {
      const uint32_t code = block << 8 | i;
      while (range + 1 < std::size(ranges) && ranges[range + 1] >> 3 <= code) ++range;
      const uint32_t next = range + 1 < std::size(ranges) ? ranges[range + 1] >> 3 : 0x110000;
      const uint32_t end = std::min(256u, i + (next - code));
      std::fill(classes.begin() + i, classes.begin() + end, static_cast<char>(ranges[range] & 7));
      i = end;
    }
    const auto [it, fresh] = known.try_emplace(classes, static_cast<uint16_t>(known.size()));
    if (fresh) {
      for (const char c : classes) blocks_.push_back(static_cast<CharClass>(c));
    }
    block_of_[block] = it->second;
  }
}

}  // namespace mythos
