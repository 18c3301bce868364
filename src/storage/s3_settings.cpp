#include "storage/s3_settings.h"

#include "base/error.h"
#include "base/file.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

namespace mythos {
namespace {
namespace fs = std::filesystem;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r";
  const size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return c < 0x80 ? std::tolower(c) : c; });
  return text;
}

std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return "";
}

// A file that is not there has nothing to say; one that cannot be read is left to the SDK, which needs it too.
std::string config_text(const Environment& environment) {
  std::string path = environment("AWS_CONFIG_FILE");
  if (path.empty()) path = environment("HOME") + "/.aws/config";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  try {
    return read_file(path, 1 << 20);
  } catch (const Error&) {
    return "";
  }
}

// Whether `host` is named by a no_proxy list: itself, a domain it lies in, or "*".
bool listed(const std::string& list, const std::string& host) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string name = lower(std::string(trimmed(std::string_view(list).substr(begin, end - begin))));
    begin = end + 1;
    if (name.starts_with('*') && name.size() > 1) name.erase(0, 1);
    if (name.starts_with('.')) name.erase(0, 1);
    if (name.empty()) continue;
    if (name == "*" || host == name || host.ends_with("." + name)) return true;
  }
  return false;
}

std::string proxy_for(const Environment& environment, const S3Settings& settings) {
  std::string host = settings.endpoint.empty() ? "s3.amazonaws.com" : settings.endpoint;
  host = host.substr(0, host.find('/'));
  if (host.starts_with('[')) {
    host = host.substr(1, host.find(']') - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  if (listed(first_of(environment, {"no_proxy", "NO_PROXY"}), lower(host))) return "";
  std::string proxy = settings.scheme == "https" ? first_of(environment, {"https_proxy", "HTTPS_PROXY"})
                                                 : first_of(environment, {"http_proxy", "HTTP_PROXY"});
  if (proxy.empty()) proxy = first_of(environment, {"all_proxy", "ALL_PROXY"});
  if (!proxy.empty() && proxy.find("://") == std::string::npos) proxy = "http://" + proxy;
  return proxy;
}

void set_endpoint(S3Settings& settings, const std::string& address, const char* where) {
  const size_t colon = address.find("://");
  const std::string scheme = lower(address.substr(0, colon));
  if (colon == std::string::npos || (scheme != "http" && scheme != "https")) {
    throw usage_error(fmt::format("{} is not an http:// or https:// address", where), "for example http://HOST:9000");
  }
  std::string rest = address.substr(colon + 3);
  while (rest.ends_with('/')) rest.pop_back();
  // Not shown: what stands before an '@' is a password.
  if (rest.empty() || rest.find_first_of("@?# ") != std::string::npos) {
    throw usage_error(fmt::format("{} must be {}://HOST[:PORT] and nothing more", where, scheme),
                      "credentials go into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials");
  }
  settings.scheme = scheme;
  settings.endpoint = rest;
}

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string aws_config_value(std::string_view text, std::string_view section, std::string_view key) {
  bool inside = false;
  std::string parent;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[') {
      std::string_view name = trimmed(content.substr(1, content.find(']') - 1));
      // "[profile default]" is the same as "[default]".
      if (name == "profile default") name = "default";
      inside = name == section;
      parent.clear();
      continue;
    }
    if (!inside) continue;
    const size_t equals = content.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name = lower(std::string(trimmed(content.substr(0, equals))));
    const std::string_view value = trimmed(content.substr(equals + 1));
    const bool nested = line.front() == ' ' || line.front() == '\t';
    if (nested ? parent + "." + name == key : name == key) return std::string(value);
    if (!nested) parent = value.empty() ? name : "";
  }
  return "";
}

S3Settings s3_settings(const Environment& environment) {
  S3Settings settings;
  settings.profile = first_of(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  if (settings.profile.empty()) settings.profile = "default";
  const std::string section = settings.profile == "default" ? "default" : "profile " + settings.profile;
  const std::string text = config_text(environment);
  const auto from_profile = [&](std::string_view key) { return aws_config_value(text, section, key); };

  if (lower(environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) != "true") {
    std::string services = from_profile("services");
    if (!services.empty()) services = aws_config_value(text, "services " + services, "s3.endpoint_url");
    if (const auto own = environment("AWS_ENDPOINT_URL_S3"); !own.empty()) {
      set_endpoint(settings, own, "AWS_ENDPOINT_URL_S3");
    } else if (const auto all = environment("AWS_ENDPOINT_URL"); !all.empty()) {
      set_endpoint(settings, all, "AWS_ENDPOINT_URL");
    } else if (!services.empty()) {
      set_endpoint(settings, services, "the S3 endpoint_url of AWS's config file");
    } else if (const auto profile = from_profile("endpoint_url"); !profile.empty()) {
      set_endpoint(settings, profile, "endpoint_url of AWS's config file");
    }
  }
  settings.region = first_of(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = from_profile("region");

  settings.ca_file = environment("AWS_CA_BUNDLE");
  if (settings.ca_file.empty()) settings.ca_file = from_profile("ca_bundle");
  if (settings.ca_file.empty()) settings.ca_file = environment("SSL_CERT_FILE");
  for (const char* path : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code error;
    if (settings.ca_file.empty() && fs::exists(path, error)) settings.ca_file = path;
  }
  settings.proxy = proxy_for(environment, settings);
  return settings;
}

}  // namespace mythos
