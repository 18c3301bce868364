#include "checkpoint/pickle_names.h"

#include "checkpoint/pickle_reader.h"

#include <algorithm>
#include <array>
#include <utility>

namespace mythos {
namespace {

// The names a checkpoint may hold. None of them is ever looked up or called: they say what a value is.
constexpr std::array plain_globals = {
    std::string_view("collections.OrderedDict"),
    std::string_view("torch._utils._rebuild_tensor_v2"),
    std::string_view("torch._utils._rebuild_parameter"),
    std::string_view("torch.Size"),
    std::string_view("torch.device"),
    std::string_view("open_mythos.main.MythosConfig"),
    std::string_view("torch.float32"),
    std::string_view("torch.float64"),
    std::string_view("torch.float16"),
    std::string_view("torch.bfloat16"),
    std::string_view("torch.int64"),
    std::string_view("torch.int32"),
    std::string_view("torch.bool"),
    std::string_view("torch.complex64"),
};
constexpr std::array<std::pair<std::string_view, DType>, 11> storages = {{
    {"torch.FloatStorage", DType::F32},
    {"torch.DoubleStorage", DType::F64},
    {"torch.HalfStorage", DType::F16},
    {"torch.BFloat16Storage", DType::BF16},
    {"torch.LongStorage", DType::I64},
    {"torch.IntStorage", DType::I32},
    {"torch.ShortStorage", DType::I16},
    {"torch.CharStorage", DType::I8},
    {"torch.ByteStorage", DType::U8},
    {"torch.BoolStorage", DType::BOOL},
    {"torch.ComplexFloatStorage", DType::C64},
}};

// Opcodes that exist and that no checkpoint needs.
constexpr std::array<std::pair<unsigned char, std::string_view>, 28> refused_opcodes = {{
    {'i', "INST"},        {'o', "OBJ"},       {'P', "PERSID"},
    {'S', "STRING"},      {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},     {'I', "INT"},       {'L', "LONG"},
    {'F', "FLOAT"},       {'B', "BINBYTES"},  {'C', "SHORT_BINBYTES"},
    {'d', "DICT"},        {'l', "LIST"},      {'g', "GET"},
    {'p', "PUT"},         {'0', "POP"},       {'1', "POP_MARK"},
    {'2', "DUP"},         {0x82, "EXT1"},     {0x83, "EXT2"},
    {0x84, "EXT4"},       {0x8b, "LONG4"},    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},  {0x90, "ADDITEMS"}, {0x92, "NEWOBJ_EX"},
    {0x96, "BYTEARRAY8"},
}};

}  // namespace

bool is_plain_global(std::string_view name) { return std::ranges::find(plain_globals, name) != plain_globals.end(); }

std::optional<DType> storage_dtype(std::string_view name) {
  for (const auto& [known, dtype] : storages) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string_view refused_opcode(unsigned char opcode) {
  for (const auto& [known, name] : refused_opcodes) {
    if (known == opcode) return name;
  }
  return "";
}

std::string_view kind_name(PickleValue::Kind kind) {
  using Kind = PickleValue::Kind;
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a bool";
    case Kind::integer:
      return "a whole number";
    case Kind::real:
      return "a number";
    case Kind::text:
      return "a text";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dict:
      return "a dict";
    case Kind::object:
      return "a MythosConfig";
    case Kind::global:
      return "a name";
    case Kind::storage:
      return "a storage";
    case Kind::tensor:
      return "a tensor";
  }
  return "something else";
}

}  // namespace mythos
