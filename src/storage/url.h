// Addresses: taken apart, joined, and shown without their secrets.
#pragma once

#include <string>
#include <string_view>

namespace mythos {

/// "https://host:443" of an http or https address: lower case, always with the port. Throws a usage error for anything
/// else.
std::string origin_of(const std::string& url);
/// What a Location or a link means on a page. Throws Error if that is not an http or https address.
std::string resolve_url(const std::string& page, const std::string& reference);
/// For messages: without user, password, query and fragment, where signed addresses carry their secrets.
std::string shown_url(std::string_view url);
/// The path of an address, still percent-encoded, "/" at least.
std::string path_of(const std::string& url);

/// Everything percent-encoded but letters, digits, "-._~" and "/".
std::string encode_path(std::string_view path);
/// One segment of a path, or a value of a query: "/" encoded too.
std::string encode_part(std::string_view part);
/// "%41" to "A"; what is no valid escape stays.
std::string decode_percent(std::string_view text);

}  // namespace mythos
