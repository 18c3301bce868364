#include "data/tokenizer_source.h"

#include <algorithm>

namespace mythos {

Tokenizer load_tokenizer(const std::string& where, Storage& storage) {
  if (!is_address(where)) return Tokenizer::load(where);
  std::string address = where;
  while (address.ends_with('/')) address.pop_back();
  // hf://OWNER/NAME alone names the repository.
  const bool repository = address.starts_with("hf://") && std::ranges::count(address, '/') == 3;
  if (repository) address += "/tokenizer.json";
  return Tokenizer(parse_vocabulary(storage.read(address, max_vocabulary_bytes), address), address);
}

Encoder encoder_of(const Tokenizer& tokenizer) {
  return {[tokenizer](std::string_view text, std::vector<int32_t>& out) { tokenizer.encode(text, out); },
          tokenizer.fingerprint(), tokenizer.end_of_text(), tokenizer.n_ids()};
}

}  // namespace mythos
