#include "base/json.h"
#include "base/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace mythos {

namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Names must come back as they were, so theirs are not replaced.
std::string json_name(const std::string& name) {
  try {
    return nlohmann::json(name).dump();
  } catch (const nlohmann::detail::type_error&) {
    throw failure(fmt::format("tensor {} cannot be written: its name is not UTF-8", json_text(name)));
  }
}

int64_t checked_bytes(const TensorInfo& t) {
  const auto bytes = tensor_bytes(t.dtype, t.shape);
  if (!bytes) {
    throw failure(fmt::format("tensor {} cannot be written: the shape [{}] of {} has no size", shown_name(t.name),
                              fmt::join(t.shape, ", "), to_string(t.dtype)));
  }
  return *bytes;
}

}  // namespace

std::string safetensors_header(std::span<const TensorInfo> tensors, const SafetensorsMetadata& metadata,
                               uint64_t header_bytes) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.emplace_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw failure(fmt::format("tensor {} is to be written twice", shown_name(*twice)));

  std::string text(sizeof(uint64_t), '\0');
  text += '{';
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += json_text(key) + ':' + json_text(value) + ',';
    text.back() = '}';
    text += ',';
  }
  int64_t begin = 0;
  for (const TensorInfo& t : tensors) {
    int64_t end = 0;
    if (__builtin_add_overflow(begin, checked_bytes(t), &end)) {
      throw failure(fmt::format("tensor {} does not fit any file", shown_name(t.name)));
    }
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_name(t.name),
                        to_string(t.dtype), fmt::join(t.shape, ","), begin, end);
    begin = end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';

  const uint64_t needed = text.size();
  if (header_bytes == 0) header_bytes = (needed + 63) / 64 * 64;
  if (header_bytes % 8 != 0 || needed > header_bytes ||
      header_bytes - sizeof(uint64_t) > SafetensorsFile::max_header_bytes) {
    throw failure(fmt::format("a header of {} bytes does not fit the {} set aside for it", needed, header_bytes));
  }
  text.resize(header_bytes, ' ');
  const uint64_t length = header_bytes - sizeof(uint64_t);
  std::memcpy(text.data(), &length, sizeof(length));
  return text;
}

void write_safetensors(AtomicFile& file, std::span<const TensorBytes> tensors, const SafetensorsMetadata& metadata,
                       uint64_t header_bytes) {
  for (const TensorBytes& t : tensors) {
    if (t.data.size() != static_cast<uint64_t>(checked_bytes(t))) {
      throw failure(fmt::format("tensor {} cannot be written: it has {} bytes, but its shape [{}] of {} needs {}",
                                shown_name(t.name), t.data.size(), fmt::join(t.shape, ", "), to_string(t.dtype),
                                checked_bytes(t)));
    }
  }
  file.write(safetensors_header(std::vector<TensorInfo>(tensors.begin(), tensors.end()), metadata, header_bytes));
  for (const TensorBytes& t : tensors) file.write(t.data);
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                       const SafetensorsMetadata& metadata, uint64_t header_bytes) {
  AtomicFile file(path);
  write_safetensors(file, tensors, metadata, header_bytes);
  file.commit();
}

}  // namespace mythos
