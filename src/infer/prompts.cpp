#include "infer/prompts.h"

#include "base/error.h"
#include "base/file.h"
#include "data/line_reader.h"

#include <algorithm>

namespace mythos {

std::vector<NumberedPrompt> read_prompts(const std::filesystem::path& file) {
  std::error_code ec;
  if (!std::filesystem::exists(file, ec))
    throw usage_error(fmt::format("there is no file of prompts {}", file.string()));
  const std::string text = read_file(file, UINT64_C(64) << 20);
  std::vector<NumberedPrompt> prompts;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_blank(line)) prompts.push_back({number, std::string(line)});
  }
  if (prompts.empty()) throw usage_error(fmt::format("{} has no prompt in it", file.string()));
  return prompts;
}

}  // namespace mythos
