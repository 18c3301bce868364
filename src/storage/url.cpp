#include "storage/url.h"

#include "base/error.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>

namespace mythos {
namespace {

struct UrlFree {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Parsed = std::unique_ptr<CURLU, UrlFree>;

// Spaces and bytes above 127 are common in what people paste and servers send: they are encoded.
constexpr unsigned flags = CURLU_URLENCODE | CURLU_NON_SUPPORT_SCHEME;

Parsed parse(const std::string& url) {
  Parsed parsed(curl_url());
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), flags) != CURLUE_OK) return nullptr;
  return parsed;
}

std::string part(const Parsed& url, CURLUPart which, unsigned how = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, how) != CURLUE_OK || text == nullptr) return "";
  std::string copy(text);
  curl_free(text);
  return copy;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

bool is_http(const Parsed& url) {
  const std::string scheme = lower(part(url, CURLUPART_SCHEME));
  return scheme == "http" || scheme == "https";
}

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

std::string encode(std::string_view text, bool keep_slash) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (plain(c) || (keep_slash && c == '/')) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return out;
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string origin_of(const std::string& url) {
  const Parsed parsed = parse(url);
  if (!parsed || !is_http(parsed) || part(parsed, CURLUPART_HOST).empty()) {
    throw usage_error(fmt::format("{} is not a valid http or https address", shown_url(url)));
  }
  return fmt::format("{}://{}:{}", lower(part(parsed, CURLUPART_SCHEME)), lower(part(parsed, CURLUPART_HOST)),
                     part(parsed, CURLUPART_PORT, CURLU_DEFAULT_PORT));
}

std::string resolve_url(const std::string& page, const std::string& reference) {
  const Parsed parsed = parse(page);
  const bool good = parsed && curl_url_set(parsed.get(), CURLUPART_URL, reference.c_str(), flags) == CURLUE_OK;
  if (!good || !is_http(parsed)) {
    throw failure(
        fmt::format("{} points to {}, which is not an http or https address", shown_url(page), shown_url(reference)));
  }
  curl_url_set(parsed.get(), CURLUPART_FRAGMENT, nullptr, 0);
  return part(parsed, CURLUPART_URL);
}

std::string shown_url(std::string_view url) {
  std::string shown(url.substr(0, url.find_first_of("?#")));
  const size_t scheme = shown.find("://");
  if (scheme != std::string::npos) {
    const size_t host = scheme + 3;
    const size_t path = std::min(shown.find('/', host), shown.size());
    const size_t at = shown.rfind('@', path);
    // Of hf:// addresses what stands behind the @ is a revision.
    if (at != std::string::npos && at >= host && !shown.starts_with("hf://")) shown.erase(host, at + 1 - host);
  }
  std::erase_if(shown, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  constexpr size_t longest = 500;
  if (shown.size() > longest) shown = shown.substr(0, longest) + "...";
  return shown;
}

std::string path_of(const std::string& url) {
  const Parsed parsed = parse(url);
  return parsed ? part(parsed, CURLUPART_PATH) : "/";
}

std::string encode_path(std::string_view path) { return encode(path, true); }
std::string encode_part(std::string_view text) { return encode(text, false); }

std::string decode_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace mythos
