// `mythos inspect FILE.pt`.
#pragma once

#include "base/json.h"

#include <filesystem>

namespace mythos {

/// What a .pt file holds, from its pickle alone: path, kind "pt", bytes, tensors, parameters (the tensors of its model
/// but buffers and a head that shares the embedding), dtypes, step, vocab_size, cfg, optimizer (states, groups), other
/// keys, and the table of tensors. Throws as PtFile does.
Json describe_pt(const std::filesystem::path& path);

}  // namespace mythos
