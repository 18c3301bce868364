#include "checkpoint/zip_reader.h"

#include "base/crc32.h"
#include "base/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>

namespace mythos {
namespace {

constexpr uint32_t local_signature = 0x04034b50, directory_signature = 0x02014b50, end_signature = 0x06054b50;
constexpr uint32_t zip64_end_signature = 0x06064b50, zip64_locator_signature = 0x07064b50;
constexpr uint64_t local_bytes = 30, directory_bytes = 46, end_bytes = 22, zip64_end_bytes = 56, locator_bytes = 20;
constexpr uint64_t longest_comment = 65535;
constexpr uint32_t no_size = 0xFFFFFFFFU;  // "see the zip64 field"

template <class T>
T number(std::span<const std::byte> bytes, uint64_t at) {
  T value = 0;  // little-endian, as every machine this is built for
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}
uint16_t u16(std::span<const std::byte> b, uint64_t at) { return number<uint16_t>(b, at); }
uint32_t u32(std::span<const std::byte> b, uint64_t at) { return number<uint32_t>(b, at); }
uint64_t u64(std::span<const std::byte> b, uint64_t at) { return number<uint64_t>(b, at); }

bool leaves_its_folder(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos) {
    return true;
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return true;
    begin = end + 1;
  }
  return false;
}

FormatError broken(const std::filesystem::path& path, const std::string& why) {
  return FormatError(fmt::format("{} is not a whole .pt file: {}", path.string(), why),
                     "copy it again from where it was written");
}

}  // namespace

ZipFile::ZipFile(const std::filesystem::path& path) : path_(path), map_(path) { read_directory(find_directory()); }

bool ZipFile::looks_like_one(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 4> start{};
  uint32_t signature = 0;
  if (!in.read(start.data(), start.size())) return false;
  std::memcpy(&signature, start.data(), sizeof(signature));
  return signature == local_signature || signature == end_signature;
}

const ZipFile::Entry* ZipFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

void ZipFile::check(const Entry& entry) const {
  if (crc32(data(entry)) == entry.crc) return;
  throw FormatError(
      fmt::format("{} is damaged: its entry {} does not match its checksum", path_.string(), shown_name(entry.name)),
      "copy it again from where it was written");
}

// The end record is the last thing in the file but for a comment.
ZipFile::Directory ZipFile::find_directory() const {
  const auto bytes = map_.bytes();
  if (bytes.size() < end_bytes) throw broken(path_, fmt::format("it has only {} bytes", bytes.size()));
  const uint64_t last = bytes.size() - end_bytes;
  const uint64_t first = last > longest_comment ? last - longest_comment : 0;
  for (uint64_t at = last + 1; at-- > first;) {
    if (u32(bytes, at) != end_signature || u16(bytes, at + 20) != last - at) continue;
    Directory d{u32(bytes, at + 16), u32(bytes, at + 12), u16(bytes, at + 10)};
    if (u16(bytes, at + 4) != u16(bytes, at + 6)) throw broken(path_, "it is one part of several");
    if (d.begin == no_size || d.bytes == no_size || d.entries == 0xFFFF) d = zip64_directory(at);
    if (d.begin > at || d.bytes > at - d.begin) {
      throw broken(path_, fmt::format("its directory should be {} bytes at byte {}, and it ends at byte {}", d.bytes,
                                      d.begin, bytes.size()));
    }
    if (d.entries > max_entries || d.entries > d.bytes / directory_bytes) {
      throw broken(path_, fmt::format("its directory of {} bytes cannot hold {} entries", d.bytes, d.entries));
    }
    return d;
  }
  throw broken(path_, fmt::format("no directory is at its end (it has {} bytes)", bytes.size()));
}

ZipFile::Directory ZipFile::zip64_directory(uint64_t end_record) const {
  const auto bytes = map_.bytes();
  if (end_record < locator_bytes || u32(bytes, end_record - locator_bytes) != zip64_locator_signature) {
    throw broken(path_, "its directory says that it is large (zip64), and has no record of how large");
  }
  const uint64_t at = u64(bytes, end_record - locator_bytes + 8);
  if (end_record < locator_bytes + zip64_end_bytes || at > end_record - locator_bytes - zip64_end_bytes ||
      u32(bytes, at) != zip64_end_signature) {
    throw broken(path_, fmt::format("its zip64 record should be at byte {} and is not", at));
  }
  return {u64(bytes, at + 48), u64(bytes, at + 40), u64(bytes, at + 32)};
}

void ZipFile::read_directory(const Directory& d) {
  const auto bytes = map_.bytes().subspan(d.begin, d.bytes);
  std::vector<uint64_t> headers;
  entries_.reserve(d.entries);
  uint64_t at = 0;
  for (uint64_t i = 0; i < d.entries; ++i) {
    if (bytes.size() - at < directory_bytes || u32(bytes, at) != directory_signature) {
      throw broken(path_, fmt::format("entry {} of {} is missing in its directory", i + 1, d.entries));
    }
    const uint64_t name_bytes = u16(bytes, at + 28);
    const uint64_t extra_bytes = u16(bytes, at + 30);
    const uint64_t all = directory_bytes + name_bytes + extra_bytes + u16(bytes, at + 32);
    if (bytes.size() - at < all || name_bytes > max_name) {
      throw broken(path_, fmt::format("entry {} of {} is cut off in its directory", i + 1, d.entries));
    }
    Entry e;
    e.name.assign(reinterpret_cast<const char*>(bytes.data() + at + directory_bytes), name_bytes);
    const std::string shown = shown_name(e.name);
    if (leaves_its_folder(e.name)) throw broken(path_, fmt::format("its entry {} leaves its folder", shown));
    if ((u16(bytes, at + 8) & 1U) != 0) throw broken(path_, fmt::format("its entry {} is encrypted", shown));
    if (const unsigned method = u16(bytes, at + 10); method != 0) {
      throw FormatError(fmt::format("{}: its entry {} is compressed (method {})", path_.string(), shown, method),
                        "torch.save does not compress: unpack it and save it again in Python");
    }
    e.crc = u32(bytes, at + 16);
    uint64_t packed = u32(bytes, at + 20);
    uint64_t size = u32(bytes, at + 24);
    uint64_t header = u32(bytes, at + 42);
    // The zip64 field holds, in this order, those of the three that do not fit.
    const auto extra = bytes.subspan(at + directory_bytes + name_bytes, extra_bytes);
    for (uint64_t x = 0; x + 4 <= extra.size();) {
      const uint64_t length = u16(extra, x + 2);
      if (length > extra.size() - x - 4) throw broken(path_, fmt::format("its entry {} is garbled", shown));
      if (u16(extra, x) == 1) {
        auto field = extra.subspan(x + 4, length);
        for (uint64_t* value : {&size, &packed, &header}) {
          if (*value != no_size) continue;
          if (field.size() < 8) throw broken(path_, fmt::format("its entry {} is garbled", shown));
          *value = u64(field, 0);
          field = field.subspan(8);
        }
      }
      x += 4 + length;
    }
    if (packed != size) {
      throw broken(path_, fmt::format("its entry {} says {} bytes in {}, and is not compressed", shown, size, packed));
    }
    e.size = size;
    e.begin = data_begin(e, header, d.begin);
    headers.push_back(header);
    entries_.push_back(std::move(e));
    at += all;
  }
  by_name_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!by_name_.try_emplace(entries_[i].name, i).second) {
      throw broken(path_, fmt::format("it has two entries {}", shown_name(entries_[i].name)));
    }
  }
  check_overlaps(d, headers);
}

// Behind the local header, which repeats the name and may pad the data to a multiple of 64 bytes.
uint64_t ZipFile::data_begin(const Entry& entry, uint64_t header, uint64_t limit) const {
  const auto bytes = map_.bytes();
  const auto out = [&] {
    return broken(path_, fmt::format("its entry {} of {} bytes at byte {} is not within the {} bytes before its "
                                     "directory",
                                     shown_name(entry.name), entry.size, header, limit));
  };
  if (header > limit || limit - header < local_bytes) throw out();
  if (u32(bytes, header) != local_signature) {
    throw broken(path_, fmt::format("its entry {} does not begin at byte {}", shown_name(entry.name), header));
  }
  const uint64_t name_bytes = u16(bytes, header + 26);
  const uint64_t before = local_bytes + name_bytes + u16(bytes, header + 28);
  if (limit - header < before || limit - header - before < entry.size) throw out();
  const std::string_view name(reinterpret_cast<const char*>(bytes.data() + header + local_bytes), name_bytes);
  if (name != entry.name || u16(bytes, header + 8) != 0) {
    throw broken(path_, fmt::format("its entry {} is another one at its place", shown_name(entry.name)));
  }
  return header + before;
}

void ZipFile::check_overlaps(const Directory& directory, const std::vector<uint64_t>& headers) const {
  std::vector<size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return headers[i]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const Entry& e = entries_[order[i]];
    const uint64_t next = i + 1 < order.size() ? headers[order[i + 1]] : directory.begin;
    if (e.begin + e.size <= next) continue;
    throw broken(path_, fmt::format("its entry {} overlaps what comes after it", shown_name(e.name)));
  }
}

}  // namespace mythos
