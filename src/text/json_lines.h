// Text out of JSON Lines, byte for byte where JSON parsers refuse or replace.
#pragma once

#include <string>
#include <string_view>

namespace mythos {

/// The string under `key` of the JSON object in `line` (the last, if the key repeats). Bytes inside the string stay as
/// they are, invalid UTF-8 too; escapes become UTF-8; a \u escape that is half of a surrogate pair without its other
/// half becomes U+FFFD. The whole line is checked to be one JSON object; nesting is limited to 512 levels and uses no
/// recursion. Throws Error saying what is wrong and at which byte, without the line's number.
std::string json_text_field(std::string_view line, std::string_view key);

}  // namespace mythos
