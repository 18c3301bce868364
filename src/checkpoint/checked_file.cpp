#include "checkpoint/checked_file.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/hasher.h"
#include "checkpoint/layout.h"
#include "checkpoint/local_target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view header_key = "header_checksum";
constexpr std::string_view tensors_key = "checksums";
constexpr size_t digits = 16;
// What every checked file's header begins with, after the 8 bytes of its length.
constexpr std::string_view header_start = R"({"__metadata__":{"header_checksum":")";
constexpr size_t digits_begin = sizeof(uint64_t) + header_start.size();
constexpr size_t hash_block = size_t{256} << 10;
constexpr size_t read_block = size_t{1} << 20;

uint64_t header_hash(std::string_view header) {
  static constexpr std::string_view zeros = "0000000000000000";
  Hasher h;
  h.add(header.data(), digits_begin);
  h.add(zeros.data(), digits);
  h.add(header.data() + digits_begin + digits, header.size() - digits_begin - digits);
  return h.value();
}

// Whether any of these F32 numbers has an exponent of ones: NaN or infinity. Blocks of a fixed size become vector code.
bool any_non_finite(std::span<const std::byte> data) {
  constexpr size_t block = 1024;
  std::array<uint32_t, block> bits{};
  while (!data.empty()) {
    const size_t n = std::min(data.size(), sizeof(bits));
    if (n < sizeof(bits)) bits.fill(0);
    std::memcpy(bits.data(), data.data(), n);
    uint32_t bad = 0;
    for (size_t i = 0; i < block; ++i) bad |= static_cast<uint32_t>((bits[i] & 0x7f800000U) == 0x7f800000U);
    if (bad != 0) return true;
    data = data.subspan(n);
  }
  return false;
}

std::string non_finite_text(const TensorBytes& t) {
  int64_t bad = 0;
  int64_t first = -1;
  const auto count = static_cast<int64_t>(t.data.size() / sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, t.data.data() + static_cast<size_t>(i) * sizeof(float), sizeof(float));
    if (std::isfinite(value)) continue;
    if (bad++ == 0) first = i;
  }
  return fmt::format("tensor {} has {} numbers of {} that are not finite, the first at {}", shown_name(t.name), bad,
                     count, first);
}

// Runs work(i) for every tensor, the largest first, on some threads, and returns what it said by tensor.
std::vector<std::string> for_each_tensor(const std::vector<uint64_t>& sizes, int threads,
                                         const std::function<std::string(size_t)>& work) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::string> said(sizes.size());
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < order.size(); i = next++) said[order[i]] = work(order[i]);
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(run);
  run();
  helpers.clear();
  return said;
}

std::string first_said(const std::vector<std::string>& said) {
  const auto it = std::find_if(said.begin(), said.end(), [](const std::string& s) { return !s.empty(); });
  return it == said.end() ? "" : *it;
}

FormatError damaged(const SafetensorsFile& file, std::string_view why) {
  return FormatError(fmt::format("{} is damaged: {}", file.path().string(), why));
}

std::vector<TensorInfo> infos(std::span<const TensorBytes> tensors) { return {tensors.begin(), tensors.end()}; }

class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw failure(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

// Hashes bytes of the file through reads, not the map: a bad sector is then an error and not the process's end, and
// the pages read do not count as memory of ours. Returns what went wrong.
std::string hash_from_disk(int fd, uint64_t begin, uint64_t end, uint64_t& hash) {
  std::vector<std::byte> buffer(std::min<uint64_t>(read_block, end - begin));
  Hasher h;
  while (begin < end) {
    const size_t wanted = std::min<uint64_t>(buffer.size(), end - begin);
    const ssize_t n = ::pread(fd, buffer.data(), wanted, static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fmt::format("cannot be read at byte {}: {}", begin, std::strerror(errno));
    if (n == 0) return fmt::format("ends at byte {} of the file, which became shorter", begin);
    h.add(buffer.data(), static_cast<size_t>(n));
    begin += static_cast<uint64_t>(n);
  }
  hash = h.value();
  return "";
}

}  // namespace

SafetensorsMetadata with_checksums(const SafetensorsMetadata& metadata, std::span<const TensorInfo> tensors,
                                   std::span<const uint64_t> checksums) {
  SafetensorsMetadata out;
  out.emplace_back(header_key, std::string(digits, '0'));
  out.insert(out.end(), metadata.begin(), metadata.end());
  std::string json = "{";
  for (size_t i = 0; i < tensors.size(); ++i) {
    json +=
        fmt::format("{}{}:\"{}\"", i == 0 ? "" : ",", nlohmann::json(tensors[i].name).dump(), hash_text(checksums[i]));
  }
  out.emplace_back(tensors_key, json + "}");
  return out;
}

uint64_t header_bytes_of(std::span<const TensorInfo> tensors, const SafetensorsMetadata& metadata) {
  constexpr uint64_t step = uint64_t{64} << 10;
  const std::vector<uint64_t> none(tensors.size(), 0);  // as long as any others
  const uint64_t needed = safetensors_header(tensors, with_checksums(metadata, tensors, none)).size();
  return std::max(checked_header_bytes(tensors), (needed + step - 1) / step * step);
}

void write_checked(const fs::path& path, std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                   const WriteOptions& options) {
  const fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  write_checked({.shown = path.string(),
                 .open = [&](uint64_t bytes) { return renamed_file(path, bytes); },
                 .free = [&] { return LocalTarget(parent.string()).free_bytes(); }},
                tensors, metadata, options);
}

void write_checked(const CheckedPlace& place, std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                   const WriteOptions& options) {
  std::vector<uint64_t> sizes;
  for (const TensorBytes& t : tensors) sizes.push_back(t.data.size());
  std::vector<uint64_t> checksums(tensors.size());
  const auto said = for_each_tensor(sizes, options.threads, [&](size_t i) -> std::string {
    const bool look = options.refuse_non_finite && tensors[i].dtype == DType::F32;
    Hasher h;
    for (auto rest = tensors[i].data; !rest.empty();) {
      const auto block = rest.first(std::min(hash_block, rest.size()));
      if (look && any_non_finite(block)) return non_finite_text(tensors[i]);
      h.add(block.data(), block.size());
      rest = rest.subspan(block.size());
    }
    checksums[i] = h.value();
    return "";
  });
  if (const std::string bad = first_said(said); !bad.empty()) {
    throw failure(fmt::format("{} was not written: {}", place.shown, bad),
                  "training went wrong before this; go on from an earlier checkpoint, with a lower learning rate");
  }

  const std::vector<TensorInfo> table = infos(tensors);
  const SafetensorsMetadata all = with_checksums(metadata, table, checksums);
  const uint64_t header_bytes = header_bytes_of(table, metadata);
  if (const uint64_t foreseen = checked_header_bytes(table); header_bytes > foreseen) {
    log::warn("{} becomes {} bytes larger than foreseen: its metadata outgrew its room", place.shown,
              header_bytes - foreseen);
  }
  std::string header = safetensors_header(table, all, header_bytes);
  const std::string sum = hash_text(header_hash(header));
  std::copy(sum.begin(), sum.end(), header.begin() + digits_begin);

  const uint64_t total = std::accumulate(sizes.begin(), sizes.end(), header_bytes);
  try {
    const auto sink = place.open(total);
    sink->write(std::as_bytes(std::span(header)));
    for (const TensorBytes& t : tensors) sink->write(t.data);
    sink->commit();
  } catch (const Error& e) {
    // What was written is gone again by now, so this is what was free before.
    const auto free = place.free ? place.free() : std::nullopt;
    throw Error(e.code(),
                free ? fmt::format("{}; the file needs {} bytes and {} are free", e.what(), total, *free)
                     : fmt::format("{}; the file needs {} bytes", e.what(), total),
                e.hint());
  }
}

void verify_header(const SafetensorsFile& file) {
  const auto bytes = file.header();
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (header.size() < digits_begin + digits || header.substr(sizeof(uint64_t), header_start.size()) != header_start) {
    throw FormatError(
        fmt::format("{} has no header checksum: it is not a checkpoint of this program, or another "
                    "program rewrote it",
                    file.path().string()));
  }
  if (header.substr(digits_begin, digits) != hash_text(header_hash(header))) {
    throw damaged(file, "its header does not match its checksum");
  }
}

void verify_tensors(const SafetensorsFile& file, int threads) {
  const auto& entries = file.entries();
  const auto text = file.metadata().find(std::string(tensors_key));
  if (text == file.metadata().end()) throw damaged(file, "it has no checksums");
  size_t longest = 2;  // what names and digits can take, every character of a name escaped
  for (const auto& e : entries) longest += e.name.size() * 6 + digits + 6;
  if (text->second.size() > longest) throw damaged(file, "its checksums are longer than they can be");
  // Not Json: a std::map finds each of many thousand names at once.
  const auto sums = nlohmann::json::parse(text->second, nullptr, false);
  if (!sums.is_object() || sums.size() != entries.size()) {
    throw damaged(file, fmt::format("it does not have one checksum for each of its {} tensors", entries.size()));
  }
  std::vector<uint64_t> sizes;
  std::vector<std::string> wanted;
  for (const auto& e : entries) {
    const auto it = sums.find(e.name);
    if (it == sums.end() || !it->is_string()) {
      throw damaged(file, fmt::format("tensor {} has no checksum", shown_name(e.name)));
    }
    wanted.push_back(it->get<std::string>());
    sizes.push_back(e.end - e.begin);
  }
  const Descriptor fd(file.bytes_path());
  const auto said = for_each_tensor(sizes, threads, [&](size_t i) -> std::string {
    uint64_t hash = 0;
    std::string why =
        hash_from_disk(fd.get(), file.data_begin() + entries[i].begin, file.data_begin() + entries[i].end, hash);
    if (why.empty() && hash_text(hash) != wanted[i]) why = "does not match its checksum";
    return why.empty() ? "" : fmt::format("tensor {} {}", shown_name(entries[i].name), why);
  });
  if (const std::string bad = first_said(said); !bad.empty()) throw damaged(file, bad);
}

}  // namespace mythos
