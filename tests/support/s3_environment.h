// A server of its own (moto) with a bucket, and the environment that points there.
#pragma once

#include "../storage/s3_server.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mythos::testing {

/// What a program needs to find the server.
inline std::vector<std::pair<std::string, std::string>> s3_environment(const test::S3Server& server) {
  return {{"AWS_ENDPOINT_URL_S3", server.address()},
          {"AWS_ENDPOINT_URL", ""},
          {"AWS_PROFILE", ""},
          {"AWS_SESSION_TOKEN", ""},
          {"AWS_ACCESS_KEY_ID", "AKIDTEST"},
          {"AWS_SECRET_ACCESS_KEY", "wJalrSecret"},
          {"AWS_REGION", "us-east-1"},
          {"AWS_EC2_METADATA_DISABLED", "true"},
          {"AWS_CONFIG_FILE", "/nonexistent/config"},
          {"AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials"},
          {"http_proxy", ""},
          {"HTTP_PROXY", ""},
          {"all_proxy", ""},
          {"ALL_PROXY", ""}};
}

/// Sets variables of this process and puts the old values back.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<std::string, std::string>>& variables) {
    for (const auto& [name, value] : variables) {
      const char* old = std::getenv(name.c_str());
      old_.try_emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_) {
      if (value) ::setenv(name.c_str(), value->c_str(), 1);
      if (!value) ::unsetenv(name.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> old_;
};

}  // namespace mythos::testing
