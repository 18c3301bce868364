#include "base/safetensors.h"

#include "base/json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

namespace mythos {
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they lie in the file");

namespace {

struct DTypeName {
  std::string_view name;
  int64_t bits;
};

constexpr std::array<DTypeName, 22> dtype_names = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

constexpr std::string_view metadata_key = "__metadata__";

// Reads the header's JSON event by event: nothing recurses, and what does not belong there ends the reading at once.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Entry = SafetensorsFile::Entry;

  HeaderReader(std::vector<Entry>& entries, std::map<std::string, std::string>& metadata)
      : entries_(entries), metadata_(metadata) {}

  // The sentence's end: what is wrong with the header.
  std::string problem = "its header is not JSON";

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_integer(number_integer_t value) override { return unexpected(fmt::format("the number {}", value)); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return unexpected(fmt::format("the size {}", value));
      if (entries_.back().shape.size() == SafetensorsFile::max_rank)
        return stop(fmt::format("{} has more than {} dimensions", tensor(), SafetensorsFile::max_rank));
      entries_.back().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (offsets_seen_ == 2) return stop(fmt::format("{} has more than two data_offsets", tensor()));
      (offsets_seen_++ == 0 ? entries_.back().begin : entries_.back().end) = value;
      return true;
    }
    return unexpected(fmt::format("the number {}", value));
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata_value) {
      metadata_.find(key_)->second = std::move(text);
      state_ = State::metadata;
      return true;
    }
    if (state_ != State::dtype) return unexpected(fmt::format("the text {}", shown_name(text)));
    const auto dtype = dtype_from(text);
    if (!dtype) return stop(fmt::format("{} has the unknown dtype {}", tensor(), shown_name(text)));
    entries_.back().dtype = *dtype;
    state_ = State::tensor;
    return true;
  }

  bool start_object(size_t) override {
    if (state_ == State::start) {
      state_ = State::root;
      return true;
    }
    if (state_ == State::root_value && key_ == metadata_key) {
      state_ = State::metadata;
      return true;
    }
    if (state_ != State::root_value) return unexpected("an object");
    if (entries_.size() == SafetensorsFile::max_tensors)
      return stop(fmt::format("it has more than {} tensors", SafetensorsFile::max_tensors));
    entries_.emplace_back().name = key_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::tensor;
    return true;
  }

  bool key(string_t& text) override {
    switch (state_) {
      case State::root:
        key_ = std::move(text);
        if (key_ == metadata_key && std::exchange(has_metadata_, true))
          return stop(fmt::format("its header names {} twice", metadata_key));
        state_ = State::root_value;
        return true;
      case State::metadata:
        key_ = std::move(text);
        state_ = State::metadata_value;
        return metadata_.emplace(key_, "").second || stop(fmt::format("its metadata names {} twice", shown_name(key_)));
      case State::tensor:
        if (text == "dtype") return field(has_dtype_, State::dtype, text);
        if (text == "shape") return field(has_shape_, State::shape_start, text);
        if (text == "data_offsets") return field(has_offsets_, State::offsets_start, text);
        return stop(fmt::format("{} has the unknown field {}", tensor(), shown_name(text)));
      default:
        return unexpected("a key");
    }
  }

  bool end_object() override {
    if (state_ == State::root) return true;
    if (state_ == State::tensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return stop(fmt::format("{} lacks its {}", tensor(),
                              !has_dtype_   ? "dtype"
                              : !has_shape_ ? "shape"
                                            : "data_offsets"));
    }
    state_ = State::root;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::shape_start) {
      state_ = State::shape;
      return true;
    }
    if (state_ == State::offsets_start) {
      state_ = State::offsets;
      offsets_seen_ = 0;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_seen_ != 2)
      return stop(fmt::format("{} has fewer than two data_offsets", tensor()));
    state_ = State::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(fmt::format("its header is not JSON at byte {}", position + sizeof(uint64_t)));
  }

 private:
  enum class State {
    start,
    root,
    root_value,
    metadata,
    metadata_value,
    tensor,
    dtype,
    shape_start,
    shape,
    offsets_start,
    offsets
  };

  bool stop(std::string why) {
    problem = std::move(why);
    return false;
  }

  [[nodiscard]] std::string tensor() const { return fmt::format("tensor {}", shown_name(entries_.back().name)); }

  bool field(bool& seen, State next, std::string_view name) {
    if (std::exchange(seen, true)) return stop(fmt::format("{} has two {}", tensor(), name));
    state_ = next;
    return true;
  }

  bool unexpected(std::string_view what) {
    switch (state_) {
      case State::start:
        return stop("its header is not a JSON object");
      case State::metadata_value:
        return stop(fmt::format("its metadata {} is {}, not a text", shown_name(key_), what));
      case State::root_value:
        return stop(fmt::format("{} is {}, not an object", shown_name(key_), what));
      case State::dtype:
        return stop(fmt::format("{} has {} as its dtype", tensor(), what));
      case State::shape_start:
      case State::shape:
        return stop(fmt::format("{} has {} in its shape", tensor(), what));
      case State::offsets_start:
      case State::offsets:
        return stop(fmt::format("{} has {} in its data_offsets", tensor(), what));
      default:
        return stop(fmt::format("its header has {} out of place", what));
    }
  }

  std::vector<Entry>& entries_;
  std::map<std::string, std::string>& metadata_;
  State state_ = State::start;
  std::string key_;
  int offsets_seen_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

FormatError bad_file(const fs::path& path, std::string_view why, std::string hint = "") {
  return FormatError(fmt::format("{} is not a usable safetensors file: {}", path.string(), why), std::move(hint));
}

}  // namespace

std::string_view to_string(DType dtype) { return dtype_names[static_cast<size_t>(dtype)].name; }

int64_t bits_of(DType dtype) { return dtype_names[static_cast<size_t>(dtype)].bits; }

std::optional<DType> dtype_from(std::string_view name) {
  for (size_t i = 0; i < dtype_names.size(); ++i) {
    if (dtype_names[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t TensorInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

std::optional<int64_t> tensor_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bits = bits_of(dtype);
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) empty = true;
    // Sizes beside a 0 are multiplied too, so that what is taken never overflows in any order.
    else if (__builtin_mul_overflow(bits, size, &bits))
      return std::nullopt;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string shown_name(std::string_view name) {
  constexpr size_t longest = 120;
  std::string text(name.substr(0, longest));
  // A cut inside a UTF-8 sequence takes the whole sequence away.
  if (name.size() > longest) {
    while (!text.empty() && (static_cast<unsigned char>(name[text.size()]) & 0xC0) == 0x80) text.pop_back();
    text += "...";
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return fmt::format("'{}'", text);
}

SafetensorsFile SafetensorsFile::open(const fs::path& path, const fs::path& shown) {
  return SafetensorsFile(path, shown.empty() ? path : shown);
}

SafetensorsFile::SafetensorsFile(const fs::path& path, const fs::path& shown)
    : path_(shown), bytes_path_(path), map_(path) {
  const std::string_view text = map_.text();
  uint64_t length = 0;
  if (text.size() < sizeof(length)) {
    throw bad_file(path_, fmt::format("it has {} bytes, fewer than the 8 that tell its header's length", text.size()));
  }
  std::memcpy(&length, text.data(), sizeof(length));
  if (length > max_header_bytes) {
    throw bad_file(path_,
                   fmt::format("its header's length is {} bytes, more than the {} allowed", length, max_header_bytes));
  }
  if (length > text.size() - sizeof(length)) {
    throw bad_file(path_, fmt::format("its header of {} bytes does not fit its {} bytes", length, text.size()),
                   "it is cut off; copy it again");
  }
  std::string_view header = text.substr(sizeof(length), length);
  data_begin_ = sizeof(length) + length;
  // The padding is spaces and nothing else, and NUL would end the JSON reader's text early.
  header = header.substr(0, header.find_last_not_of(' ') + 1);
  if (header.empty() || header.front() != '{' || header.back() != '}') {
    throw bad_file(path_, "its header is not a JSON object");
  }
  if (header.find('\0') != std::string_view::npos) throw bad_file(path_, "its header has a zero byte");

  HeaderReader reader(entries_, metadata_);
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) throw bad_file(path_, reader.problem);
  index_names();
  check_layout();
}

void SafetensorsFile::check_layout() {
  uint64_t described = 0;
  const Entry* before = nullptr;
  for (const Entry& e : entries_) {
    const std::string name = shown_name(e.name);
    const auto wanted = tensor_bytes(e.dtype, e.shape);
    if (!wanted) {
      throw bad_file(path_, fmt::format("tensor {} has the shape [{}] of {}, which no file can hold", name,
                                        fmt::join(e.shape, ", "), to_string(e.dtype)));
    }
    if (e.end < e.begin) {
      throw bad_file(path_, fmt::format("tensor {} ends at {} before it begins at {}", name, e.end, e.begin));
    }
    if (e.end - e.begin != static_cast<uint64_t>(*wanted)) {
      throw bad_file(path_, fmt::format("tensor {} has {} bytes, but its shape [{}] of {} needs {}", name,
                                        e.end - e.begin, fmt::join(e.shape, ", "), to_string(e.dtype), *wanted));
    }
    if (e.begin != described) {
      throw bad_file(path_, fmt::format("tensor {} begins at {}, but {} at {}: the bytes {}", name, e.begin,
                                        before == nullptr ? "the data begins" : shown_name(before->name) + " ends",
                                        described, e.begin < described ? "overlap" : "between belong to none"));
    }
    described = e.end;
    before = &e;
  }
  const uint64_t present = file_bytes() - data_begin_;
  if (described != present) {
    throw bad_file(path_,
                   described > present && before != nullptr
                       ? fmt::format("it has {} bytes and its header describes {}: tensor {} is cut off", file_bytes(),
                                     data_begin_ + described, shown_name(before->name))
                       : fmt::format("it has {} bytes and its header describes {}: {} too many", file_bytes(),
                                     data_begin_ + described, present - described),
                   described > present ? "it was not written or copied to its end" : "");
  }
}

void SafetensorsFile::index_names() {
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return entries_[a].name < entries_[b].name; });
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(),
                                        [&](uint32_t a, uint32_t b) { return entries_[a].name == entries_[b].name; });
  if (twice != by_name_.end()) {
    throw bad_file(path_, fmt::format("tensor {} is there twice", shown_name(entries_[*twice].name)));
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return entries_[i].name < n; });
  if (it == by_name_.end() || entries_[*it].name != name) return nullptr;
  return &entries_[*it];
}

const SafetensorsFile::Entry& SafetensorsFile::at(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw FormatError(fmt::format("{} has no tensor {}", path_.string(), shown_name(name)));
  return *entry;
}

std::span<const std::byte> SafetensorsFile::data(const Entry& entry) const {
  return map_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

}  // namespace mythos
