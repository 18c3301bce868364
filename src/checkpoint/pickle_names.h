// What a pickle may name, and what it may not: the lists that checkpoint/pickle_reader.cpp goes by.
#pragma once

#include "base/safetensors.h"

#include <optional>
#include <string_view>

namespace mythos {

/// Whether a checkpoint may hold this name ("module.name"), storages apart.
bool is_plain_global(std::string_view name);
/// What the elements of a storage class are; nothing for any other name.
std::optional<DType> storage_dtype(std::string_view name);
/// The name of an opcode that exists and that no checkpoint needs; empty for others.
std::string_view refused_opcode(unsigned char opcode);

}  // namespace mythos
