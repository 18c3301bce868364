// Prompts in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mythos {

struct NumberedPrompt {
  int64_t line = 0;  ///< from 1
  std::string text;  ///< without its line end
};

/// A prompt a line; lines of blanks do not count. Throws usage Error for a file that is not there or without a prompt.
std::vector<NumberedPrompt> read_prompts(const std::filesystem::path& file);

}  // namespace mythos
