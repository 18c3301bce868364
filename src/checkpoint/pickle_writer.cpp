#include "checkpoint/pickle_writer.h"

#include "base/error.h"

#include <bit>
#include <limits>

namespace mythos {
namespace {

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
}

std::string_view storage_name(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "FloatStorage";
    case DType::C64:
      return "ComplexFloatStorage";
    default:
      throw failure(fmt::format("a .pt file with {} is not written here", to_string(dtype)));
  }
}

}  // namespace

std::string PickleWriter::end() {
  out_ += '.';
  return std::move(out_);
}

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    out_ += 'K';
    return put(out_, static_cast<uint8_t>(value));
  }
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    out_ += 'J';
    return put(out_, static_cast<uint32_t>(value));
  }
  out_ += '\x8a';  // LONG1
  out_ += '\x08';
  put(out_, static_cast<uint64_t>(value));
}

void PickleWriter::real(double value) {
  out_ += 'G';
  put(out_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void PickleWriter::text(std::string_view value) {
  out_ += 'X';
  put(out_, static_cast<uint32_t>(value.size()));
  out_ += value;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += fmt::format("c{}\n{}\n", module, name);
}

void PickleWriter::ordered_dict() {
  global("collections", "OrderedDict");
  out_ += ")R";
}

void PickleWriter::new_object(std::string_view module, std::string_view name) {
  global(module, name);
  out_ += ")\x81";
}

void PickleWriter::integers(const std::vector<int64_t>& values) {
  mark();
  for (const int64_t v : values) integer(v);
  out_ += 't';
}

void PickleWriter::tensor(const TensorInfo& info, size_t key) {
  std::vector<int64_t> strides(info.shape.size(), 1);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * info.shape[i];
  global("torch._utils", "_rebuild_tensor_v2");
  mark();
  mark();
  text("storage");
  global("torch", storage_name(info.dtype));
  text(fmt::format("{}", key));
  text("cpu");
  integer(info.numel());
  out_ += "tQ";
  integer(0);
  integers(info.shape);
  integers(strides);
  boolean(false);  // requires_grad
  ordered_dict();  // backward hooks
  out_ += "tR";
}

}  // namespace mythos
