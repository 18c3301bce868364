#include "storage/hub_address.h"

#include "base/error.h"
#include "base/file.h"
#include "storage/url.h"

#include <algorithm>
#include <cstdlib>

namespace mythos {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view forms =
    "the form is hf://datasets/OWNER/NAME[@REVISION][/PATH], or hf://OWNER/NAME for models";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_true(std::string value) {
  std::ranges::transform(value, value.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

fs::path with_home(const std::string& path) {
  if (path == "~" || path.starts_with("~/")) return fs::path(variable("HOME") + path.substr(1));
  return path;
}

std::string trimmed(std::string text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  text.erase(0, static_cast<size_t>(std::ranges::find_if_not(text, blank) - text.begin()));
  return text;
}

// What the hub allows in names; also nothing that would lead out of a folder.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 96 && name != "." && name.find("..") == std::string_view::npos &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::string_view take_segment(std::string_view& text) {
  const std::string_view segment = text.substr(0, text.find('/'));
  text.remove_prefix(std::min(segment.size() + 1, text.size()));
  return segment;
}

}  // namespace

std::string HubAddress::shown() const { return fmt::format("hf://{}{}", dataset ? "datasets/" : "", repository()); }
std::string HubAddress::key() const { return shown() + "@" + revision; }
std::string HubAddress::file_at(const std::string& commit, const std::string& file) const {
  return fmt::format("{}@{}/{}", shown(), commit, file);
}

bool is_commit(std::string_view revision) {
  return revision.size() == 40 &&
         std::ranges::all_of(revision, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

HubAddress parse_hub_address(const std::string& address) {
  const auto refuse = [&](std::string_view why) {
    return usage_error(fmt::format("{} {}", address, why), std::string(forms));
  };
  std::string_view rest = address;
  if (!rest.starts_with("hf://")) throw refuse("is not an address of the hub");
  rest.remove_prefix(5);
  HubAddress result;
  if (rest.starts_with("datasets/")) {
    result.dataset = true;
    rest.remove_prefix(9);
  } else if (rest.starts_with("spaces/") || rest.starts_with("buckets/")) {
    throw refuse("is neither a data set nor a model");
  } else if (rest.starts_with("models/")) {
    rest.remove_prefix(7);
  }
  result.owner = take_segment(rest);
  std::string_view name = take_segment(rest);
  if (const size_t at = name.find('@'); at != std::string_view::npos) {
    result.revision = decode_percent(name.substr(at + 1));
    name = name.substr(0, at);
    // Revisions with slashes are written with %2F, but for two well-known kinds.
    if (result.revision == "refs" && (rest.starts_with("pr/") || rest.starts_with("convert/"))) {
      result.revision += "/" + std::string(take_segment(rest));
      result.revision += "/" + std::string(take_segment(rest));
    }
    if (result.revision.empty() || result.revision.size() > 200) throw refuse("has no revision after the @");
  }
  result.name = name;
  if (!is_name(result.owner) || !is_name(result.name)) throw refuse("names no repository");
  while (rest.ends_with('/')) rest.remove_suffix(1);
  result.path = rest;
  // A path that climbs would leave the repository in an address, and the cache's folder on the disk.
  std::string_view segments = rest;
  while (!segments.empty()) {
    const std::string_view segment = take_segment(segments);
    if (segment.empty() || segment == "." || segment == "..") throw refuse("has an empty or climbing part in its path");
  }
  if (result.path.find('\0') != std::string::npos || result.revision.find("..") != std::string::npos ||
      result.revision.starts_with('/')) {
    throw refuse("is not valid");
  }
  return result;
}

HubSettings hub_settings() {
  HubSettings settings;
  settings.endpoint = variable("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  origin_of(settings.endpoint);  // throws if it is no address
  fs::path home = with_home(variable("HF_HOME"));
  if (home.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    home = (cache.empty() ? with_home("~/.cache") : with_home(cache)) / "huggingface";
  }
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (settings.cache.empty()) settings.cache = with_home(variable(name));
  }
  if (settings.cache.empty()) settings.cache = home / "hub";
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (settings.token.empty()) settings.token = trimmed(variable(name));
  }
  if (settings.token.empty() && !is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const std::string named = variable("HF_TOKEN_PATH");
    const fs::path file = named.empty() ? home / "token" : with_home(named);
    std::error_code ec;
    if (fs::is_regular_file(file, ec)) settings.token = trimmed(read_file(file, 65536));
  }
  const bool clean = std::ranges::all_of(settings.token, [](char c) { return c > 0x20 && c < 0x7f; });
  if (!clean)
    throw usage_error("the Hugging Face token holds blanks or other characters that no token has", "check HF_TOKEN");
  settings.offline = is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
  return settings;
}

}  // namespace mythos
