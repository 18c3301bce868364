// Where S3 is and how to get there, from the environment and the files AWS's own tools read.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace mythos {

/// An environment variable's value; empty if it is not set.
using Environment = std::function<std::string(const char*)>;
std::string process_environment(const char* name);

struct S3Settings {
  std::string scheme = "https";
  std::string endpoint;  ///< "HOST[:PORT][/PATH]" of a server that is not Amazon's, or empty
  std::string region;    ///< empty: not configured
  std::string ca_file;   ///< PEM file of certificate authorities, or empty where none was found
  std::string proxy;     ///< address of a proxy, or empty; may hold a password: not to be printed
  std::string profile;   ///< of the shared files
};

/// Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then the profile's (`services`, `endpoint_url`), unless
/// AWS_IGNORE_CONFIGURED_ENDPOINT_URLS says no. Region: AWS_REGION, AWS_DEFAULT_REGION, then the profile's. The profile
/// is AWS_PROFILE, AWS_DEFAULT_PROFILE or "default" of AWS_CONFIG_FILE or ~/.aws/config. Certificates: AWS_CA_BUNDLE,
/// the profile's `ca_bundle`, SSL_CERT_FILE, then this system's own. Proxy: https_proxy or http_proxy by the scheme,
/// all_proxy, no_proxy (upper case too). Throws a usage error for an endpoint that is no http or https address.
S3Settings s3_settings(const Environment& environment = process_environment);

/// The value of `key` of a profile in the text of a config file: "region", or "s3.endpoint_url" for one nested under
/// "s3 =". `section` is as in the brackets: "default", "profile NAME", "services NAME". Empty if there is none.
std::string aws_config_value(std::string_view text, std::string_view section, std::string_view key);

}  // namespace mythos
