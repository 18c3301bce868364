#include "checkpoint/pt_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>

namespace mythos {
namespace fs = std::filesystem;
namespace {

// What the file is, if it is not an archive.
const fs::path& require_archive(const fs::path& path) {
  if (ZipFile::looks_like_one(path)) return path;
  std::ifstream in(path, std::ios::binary);
  std::array<char, 16> start{};
  in.read(start.data(), start.size());
  const auto n = static_cast<size_t>(in.gcount());
  if (n > 2 && static_cast<unsigned char>(start[0]) == 0x80 && start[1] >= 2 && start[1] <= 5) {
    Pickle::read(std::as_bytes(std::span(start.data(), n)), path.string());  // says so, if it is the old format
  }
  throw FormatError(fmt::format("{} is not a .pt file: it does not begin as a zip archive", path.string()),
                    n == 0 ? "it is empty" : "give what torch.save wrote, or a .safetensors file");
}

}  // namespace

PtFile::PtFile(const fs::path& path) : zip_(require_archive(path)) {
  const ZipFile::Entry* pickle = zip_.find("data.pkl");
  for (const auto& e : zip_.entries()) {
    const size_t slash = e.name.find('/');
    if (slash == std::string::npos || e.name.substr(slash) != "/data.pkl") continue;
    if (pickle != nullptr) throw FormatError(fmt::format("{} has two pickles", path.string()));
    pickle = &e;
    prefix_ = e.name.substr(0, slash + 1);
  }
  if (pickle == nullptr) {
    throw FormatError(fmt::format("{} is a zip archive without a data.pkl", path.string()),
                      "give what torch.save wrote");
  }
  if (const auto* order = zip_.find(prefix_ + "byteorder")) {
    const auto data = zip_.data(*order);
    const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
    if (text != "little") {
      throw FormatError(fmt::format("{} has numbers in another byte order ({})", path.string(), shown_name(text)),
                        "save it on a little-endian machine");
    }
  }
  zip_.check(*pickle);
  pickle_ = Pickle::read(zip_.data(*pickle), path.string());
}

void PtFile::check() const {
  for (const auto& e : zip_.entries()) zip_.check(e);
}

const ZipFile::Entry& PtFile::entry_of(const PickleValue& storage) const {
  const auto* e = zip_.find(fmt::format("{}data/{}", prefix_, storage.text));
  const auto wanted = tensor_bytes(storage.dtype, std::array{storage.integer});
  if (e == nullptr || !wanted || e->size != static_cast<uint64_t>(*wanted)) {
    throw FormatError(fmt::format("{}: the storage {} of {} elements of {} {}", path().string(),
                                  shown_name(storage.text), storage.integer, to_string(storage.dtype),
                                  e == nullptr ? "is not in the archive" : fmt::format("has {} bytes", e->size)));
  }
  return *e;
}

std::span<const std::byte> PtFile::bytes(const PickleValue& tensor, std::deque<std::vector<std::byte>>& copies) const {
  const auto all = zip_.data(entry_of(pickle_[tensor.items.front()]));
  const auto size = static_cast<size_t>(size_of(dtype(tensor)));
  size_t n = 1;
  bool in_order = true;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    in_order = in_order && (tensor.shape[i] == 1 || tensor.strides[i] == static_cast<int64_t>(n));
    n *= static_cast<size_t>(tensor.shape[i]);
  }
  if (n == 0) return {};
  const size_t begin = static_cast<size_t>(tensor.integer) * size;
  if (in_order) return all.subspan(begin, n * size);
  std::vector<std::byte>& out = copies.emplace_back(n * size);
  std::vector<int64_t> index(tensor.shape.size(), 0);
  for (size_t i = 0; i < n; ++i) {
    size_t at = begin;
    for (size_t d = 0; d < index.size(); ++d) at += static_cast<size_t>(index[d] * tensor.strides[d]) * size;
    std::memcpy(out.data() + i * size, all.data() + at, size);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.shape[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

double PtFile::number(const PickleValue& value, std::string_view what) const {
  using Kind = PickleValue::Kind;
  if (value.kind == Kind::integer) return static_cast<double>(value.integer);
  if (value.kind == Kind::real) return value.real;
  std::deque<std::vector<std::byte>> copies;
  if (value.kind == Kind::tensor) {
    const auto data = bytes(value, copies);
    if (dtype(value) == DType::F32 && data.size() == sizeof(float)) {
      float f = 0;
      std::memcpy(&f, data.data(), sizeof(f));
      return f;
    }
    if (dtype(value) == DType::F64 && data.size() == sizeof(double)) {
      double f = 0;
      std::memcpy(&f, data.data(), sizeof(f));
      return f;
    }
    if (dtype(value) == DType::I64 && data.size() == sizeof(int64_t)) {
      int64_t i = 0;
      std::memcpy(&i, data.data(), sizeof(i));
      return static_cast<double>(i);
    }
  }
  throw FormatError(fmt::format("{}: {} is {}, not a number", path().string(), what, kind_name(value.kind)));
}

}  // namespace mythos
