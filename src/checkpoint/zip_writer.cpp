#include "checkpoint/zip_writer.h"

#include "base/crc32.h"

#include <algorithm>

namespace mythos {
namespace {

constexpr uint64_t alignment = 64;
constexpr uint64_t too_large = 0xFFFFFFFFU;
constexpr uint64_t chunk = uint64_t{4} << 20;

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
}
uint32_t capped(uint64_t value) { return static_cast<uint32_t>(std::min(value, too_large)); }

}  // namespace

ZipWriter::ZipWriter(const std::filesystem::path& path, uint64_t bytes) : file_(path) { file_.reserve(bytes); }

void ZipWriter::add(const std::string& name, std::span<const std::byte> data) {
  Entry e{name, file_.size(), data.size(), crc32(data)};
  std::string extra;
  if (e.size >= too_large) {
    put<uint16_t>(extra, 1);
    put<uint16_t>(extra, 16);
    put<uint64_t>(extra, e.size);
    put<uint64_t>(extra, e.size);
  }
  // A field of its own ("FB") takes up what is missing to the next multiple.
  const uint64_t before = e.header + 30 + name.size() + extra.size() + 4;
  const uint64_t padding = (alignment - before % alignment) % alignment;
  put<uint16_t>(extra, 0x4246);
  put<uint16_t>(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string head;
  put<uint32_t>(head, 0x04034b50);
  put<uint16_t>(head, e.size >= too_large ? 45 : 0);  // version needed
  put<uint16_t>(head, 0x0800);                        // names are UTF-8
  put<uint16_t>(head, 0);                             // stored
  put<uint32_t>(head, 0);                             // no time: the same input gives the same bytes
  put<uint32_t>(head, e.crc);
  put<uint32_t>(head, capped(e.size));
  put<uint32_t>(head, capped(e.size));
  put<uint16_t>(head, static_cast<uint16_t>(name.size()));
  put<uint16_t>(head, static_cast<uint16_t>(extra.size()));
  file_.write(head + name + extra);
  for (; !data.empty(); data = data.subspan(std::min<size_t>(data.size(), chunk))) {
    file_.write(data.first(std::min<size_t>(data.size(), chunk)));
    file_.pace();
  }
  entries_.push_back(std::move(e));
}

void ZipWriter::commit() {
  const uint64_t begin = file_.size();
  std::string out;
  for (const Entry& e : entries_) {
    std::string extra;
    if (e.size >= too_large || e.header >= too_large) {
      std::string values;
      for (const uint64_t v : {e.size, e.size, e.header}) {
        if (v >= too_large) put<uint64_t>(values, v);
      }
      put<uint16_t>(extra, 1);
      put<uint16_t>(extra, static_cast<uint16_t>(values.size()));
      extra += values;
    }
    put<uint32_t>(out, 0x02014b50);
    put<uint16_t>(out, 0);
    put<uint16_t>(out, extra.empty() ? 0 : 45);
    put<uint16_t>(out, 0x0800);
    put<uint16_t>(out, 0);
    put<uint32_t>(out, 0);
    put<uint32_t>(out, e.crc);
    put<uint32_t>(out, capped(e.size));
    put<uint32_t>(out, capped(e.size));
    put<uint16_t>(out, static_cast<uint16_t>(e.name.size()));
    put<uint16_t>(out, static_cast<uint16_t>(extra.size()));
    put<uint16_t>(out, 0);  // comment
    put<uint16_t>(out, 0);  // disk
    put<uint16_t>(out, 0);
    put<uint32_t>(out, 0);
    put<uint32_t>(out, capped(e.header));
    out += e.name + extra;
  }
  const uint64_t bytes = out.size();
  const uint64_t n = entries_.size();
  if (n >= 0xFFFF || begin >= too_large || bytes >= too_large) {
    put<uint32_t>(out, 0x06064b50);
    put<uint64_t>(out, 44);  // of this record, from here on
    put<uint16_t>(out, 45);
    put<uint16_t>(out, 45);
    put<uint32_t>(out, 0);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, n);
    put<uint64_t>(out, n);
    put<uint64_t>(out, bytes);
    put<uint64_t>(out, begin);
    put<uint32_t>(out, 0x07064b50);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, begin + bytes);
    put<uint32_t>(out, 1);
  }
  const auto count = static_cast<uint16_t>(std::min<uint64_t>(n, 0xFFFF));
  put<uint32_t>(out, 0x06054b50);
  put<uint16_t>(out, 0);
  put<uint16_t>(out, 0);
  put<uint16_t>(out, count);
  put<uint16_t>(out, count);
  put<uint32_t>(out, capped(bytes));
  put<uint32_t>(out, capped(begin));
  put<uint16_t>(out, 0);
  file_.write(out);
  file_.commit();
}

}  // namespace mythos
