// Plain weights from a file, as Python's `safetensors` writes them: no optimizer state, no metadata.
#pragma once

#include "model/model.h"

#include <filesystem>

namespace mythos {

/// Copies weights from a .safetensors file that holds every parameter in fp32 by the reference's name, and buffers
/// where it holds them. Throws FormatError naming what is missing, of another type or shape, or unknown; nothing is
/// changed then.
void load_weights_file(const std::filesystem::path& path, Model& model);

}  // namespace mythos
