// Base64 (RFC 4648, with padding).
#pragma once

#include <string>
#include <string_view>

namespace mythos {

std::string base64_encode(std::string_view bytes);
/// Strict: the standard alphabet, padding where it belongs, unused bits zero. False if `text` is anything else.
[[nodiscard]] bool base64_decode(std::string_view text, std::string& bytes);

}  // namespace mythos
