// Where S3 is, from environments and files as AWS's own tools take them.
#include "storage/s3_settings.h"

#include "../base/scratch.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace mythos {
namespace {

S3Settings settings(const std::map<std::string, std::string>& variables) {
  return s3_settings([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

constexpr const char* config =
    "# comment\n"
    "[default]\nregion = eu-west-3\n\n"
    "[profile own]\n region=wrong\nregion = us-west-2\nservices = mine\nendpoint_url = https://all.example\n"
    "ca_bundle = /some/ca.pem\n"
    "[services mine]\nec2 =\n  endpoint_url = https://ec2.example\ns3 =\n  endpoint_url = https://s3.example:8443/\n";

TEST(S3Settings, ConfigFile) {
  EXPECT_EQ(aws_config_value(config, "default", "region"), "eu-west-3");
  EXPECT_EQ(aws_config_value(config, "profile own", "region"), "us-west-2");
  EXPECT_EQ(aws_config_value(config, "services mine", "s3.endpoint_url"), "https://s3.example:8443/");
  EXPECT_EQ(aws_config_value(config, "profile none", "region"), "");
  EXPECT_EQ(aws_config_value("[profile default]\nregion=x", "default", "region"), "x");
  EXPECT_EQ(aws_config_value("[", "default", "region"), "");
}

TEST(S3Settings, OrderOfEndpointAndRegion) {
  const Scratch scratch;
  std::ofstream(scratch / "config") << config;
  std::map<std::string, std::string> variables{{"AWS_CONFIG_FILE", (scratch / "config").string()}};
  EXPECT_EQ(settings(variables).region, "eu-west-3");
  EXPECT_EQ(settings(variables).endpoint, "");
  variables["AWS_PROFILE"] = "own";
  EXPECT_EQ(settings(variables).region, "us-west-2");
  EXPECT_EQ(settings(variables).endpoint, "s3.example:8443");
  EXPECT_EQ(settings(variables).ca_file, "/some/ca.pem");
  variables["AWS_DEFAULT_REGION"] = "a";
  variables["AWS_ENDPOINT_URL"] = "http://h:1/path/";
  EXPECT_EQ(settings(variables).region, "a");
  EXPECT_EQ(settings(variables).endpoint, "h:1/path");
  EXPECT_EQ(settings(variables).scheme, "http");
  variables["AWS_REGION"] = "b";
  variables["AWS_ENDPOINT_URL_S3"] = "HTTPS://g";
  variables["AWS_CA_BUNDLE"] = "/own.pem";
  EXPECT_EQ(settings(variables).region, "b");
  EXPECT_EQ(settings(variables).endpoint, "g");
  EXPECT_EQ(settings(variables).scheme, "https");
  EXPECT_EQ(settings(variables).ca_file, "/own.pem");
  variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(settings(variables).endpoint, "");
}

TEST(S3Settings, HomeFolder) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / ".aws");
  std::ofstream(scratch / ".aws/config") << config;
  EXPECT_EQ(settings({{"HOME", scratch.path().string()}}).region, "eu-west-3");
}

TEST(S3Settings, EndpointsThatAreNone) {
  for (const char* address : {"host:9000", "ftp://h", "http://", "http://user:secret@h", "http://h?x"}) {
    try {
      settings({{"AWS_ENDPOINT_URL", address}});
      ADD_FAILURE() << address;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(error.line().find("secret"), std::string::npos) << error.line();
      EXPECT_NE(error.line().find("AWS_ENDPOINT_URL"), std::string::npos) << error.line();
    }
  }
}

TEST(S3Settings, Proxies) {
  const std::map<std::string, std::string> both{{"https_proxy", "http://p:1"}, {"HTTP_PROXY", "q:2"}};
  const auto with = [&](std::initializer_list<std::pair<const std::string, std::string>> more) {
    auto variables = both;
    variables.insert(more);
    return settings(variables).proxy;
  };
  EXPECT_EQ(with({}), "http://p:1");
  EXPECT_EQ(with({{"AWS_ENDPOINT_URL", "http://h:9"}}), "http://q:2");
  EXPECT_EQ(with({{"AWS_ENDPOINT_URL", "http://in.here:9"}, {"no_proxy", "x, .here"}}), "");
  EXPECT_EQ(with({{"NO_PROXY", "amazonaws.com"}}), "");
  EXPECT_EQ(with({{"NO_PROXY", "ws.com"}}), "http://p:1");
  EXPECT_EQ(with({{"no_proxy", "*"}}), "");
  EXPECT_EQ(settings({{"all_proxy", "http://a:3"}}).proxy, "http://a:3");
}

}  // namespace
}  // namespace mythos
