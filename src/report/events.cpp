#include "report/events.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view name_start = "events.out.tfevents.";
constexpr size_t most_waiting = size_t{1} << 20;

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0x82F63B78U ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}();

// Little-endian, as Protocol Buffers and TFRecords have it.
template <class Number>
void append_fixed(std::string& out, Number number) {
  for (size_t i = 0; i < sizeof(number); ++i) out += static_cast<char>(number >> (8 * i) & 0xFF);
}

// Protocol Buffers' wire format (https://protobuf.dev/programming-guides/encoding): a tag with the field's number and
// kind, then the value.
void append_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>((number & 0x7F) | 0x80);
  out += static_cast<char>(number);
}
void number_field(std::string& out, uint32_t field, int64_t number) {
  append_varint(out, field << 3);
  append_varint(out, static_cast<uint64_t>(number));
}
void double_field(std::string& out, uint32_t field, double number) {
  append_varint(out, field << 3 | 1);
  append_fixed(out, std::bit_cast<uint64_t>(number));
}
void float_field(std::string& out, uint32_t field, float number) {
  append_varint(out, field << 3 | 5);
  append_fixed(out, std::bit_cast<uint32_t>(number));
}
void bytes_field(std::string& out, uint32_t field, std::string_view bytes) {
  append_varint(out, field << 3 | 2);
  append_varint(out, bytes.size());
  out += bytes;
}

// Of the messages, the fields that are used here.
namespace event {
constexpr uint32_t wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session_log {
constexpr uint32_t status = 1;
constexpr int64_t start = 1;
}  // namespace session_log
namespace summary {
constexpr uint32_t value = 1;
}
namespace value {
constexpr uint32_t tag = 1, simple_value = 2, tensor = 8, metadata = 9;
}
namespace metadata {
constexpr uint32_t plugin_data = 1, data_class = 4, plugin_name = 1;
constexpr int64_t scalar_class = 1, tensor_class = 2;
}  // namespace metadata
namespace tensor {
constexpr uint32_t dtype = 1, shape = 2, string_value = 8;
constexpr uint32_t dimension = 2, size = 1;
constexpr int64_t of_strings = 7;
}  // namespace tensor

std::string metadata_of(std::string_view plugin, int64_t data_class) {
  std::string name, out;
  bytes_field(name, metadata::plugin_name, plugin);
  bytes_field(out, metadata::plugin_data, name);
  number_field(out, metadata::data_class, data_class);
  return out;
}

std::string record(std::string_view bytes) {
  std::string out;
  append_fixed(out, static_cast<uint64_t>(bytes.size()));
  append_fixed(out, masked_crc32c(out));
  out += bytes;
  append_fixed(out, masked_crc32c(bytes));
  return out;
}

// Seconds since 1970 for a new file's name: more than any file there has.
int64_t number_of_file(const fs::path& folder) {
  int64_t number =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(name_start)) continue;
    int64_t there = 0;
    const char* const digits = name.data() + name_start.size();
    const auto [last, code] = std::from_chars(digits, name.data() + name.size(), there);
    if (code == std::errc() && last - digits <= 10 && there < 9'999'999'999) number = std::max(number, there + 1);
  }
  return number;
}

fs::path new_file(const fs::path& folder) {
  make_folder(folder);
  return folder / fmt::format("{}{:010}.{}.{}", name_start, number_of_file(folder), host_name(), ::getpid());
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

EventWriter::EventWriter(const fs::path& folder, int64_t last_step) : file_(new_file(folder)) {
  std::string version;
  bytes_field(version, event::file_version, "brain.Event:2");
  add(0, version);
  going_back_to(last_step);
  flush();
}

EventWriter::~EventWriter() { flush(); }

void EventWriter::add(int64_t step, std::string_view field) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string bytes;
  double_field(bytes, event::wall_time, now.count());
  number_field(bytes, event::step, step);
  bytes += field;
  waiting_ += record(bytes);
}

void EventWriter::going_back_to(int64_t last_step) {
  // A session that starts at a step takes back all that is there of this step and those after it.
  std::string session, field;
  number_field(session, session_log::status, session_log::start);
  bytes_field(field, event::session_log, session);
  add(last_step > 0 ? last_step + 1 : 0, field);
}

void EventWriter::scalars(int64_t step, const Scalars& values) {
  if (values.empty()) return;
  static const std::string kind = metadata_of("scalars", metadata::scalar_class);
  std::string all, field;
  for (const auto& [name, number] : values) {
    std::string one;
    bytes_field(one, value::tag, name);
    float_field(one, value::simple_value, static_cast<float>(number));
    bytes_field(one, value::metadata, kind);
    bytes_field(all, summary::value, one);
  }
  bytes_field(field, event::summary, all);
  add(step, field);
}

void EventWriter::text(int64_t step, std::string_view name, std::string_view markdown) {
  static const std::string kind = metadata_of("text", metadata::tensor_class);
  std::string size, shape, strings, one, all, field;
  number_field(size, tensor::size, 1);
  bytes_field(shape, tensor::dimension, size);
  number_field(strings, tensor::dtype, tensor::of_strings);
  bytes_field(strings, tensor::shape, shape);
  bytes_field(strings, tensor::string_value, markdown);
  bytes_field(one, value::tag, name);
  bytes_field(one, value::tensor, strings);
  bytes_field(one, value::metadata, kind);
  bytes_field(all, summary::value, one);
  bytes_field(field, event::summary, all);
  add(step, field);
}

void EventWriter::flush() {
  const std::string why = file_.write(waiting_);
  if (why.empty() || waiting_.size() > most_waiting) waiting_.clear();
  if (why.empty() || warned_) return;
  warned_ = true;
  log::warn("cannot write {}: {}; the run goes on without it", file_.path().string(), why);
}

}  // namespace mythos
