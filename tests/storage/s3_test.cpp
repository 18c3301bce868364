// s3:// against a real server (moto), with the faults a network has.
#include "storage/s3.h"

#include "base/error.h"
#include "base/signals.h"
#include "s3_server.h"
#include "storage/s3_settings.h"
#include "storage/storage.h"

#include <arrow/filesystem/s3fs.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <thread>

namespace mythos {
namespace {

using test::S3Server;

constexpr std::array<std::string_view, 2> kinds{".txt", ".jsonl"};

std::string error_of(const std::function<void()>& call, ExitCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.line();
    EXPECT_EQ(error.line().find("wJalr"), std::string::npos) << "a secret is shown: " << error.line();
    return error.line();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "not in it: " << part << "\nit is: " << text;
}
#define EXPECT_HAS(text, part)            \
  do {                                    \
    SCOPED_TRACE("where it is expected"); \
    expect_has(text, part);               \
  } while (false)

// Sets variables and puts the old values back.
class Variables {
 public:
  void set(const std::string& name, const std::string& value) {
    keep(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  void unset(const std::string& name) {
    keep(name);
    ::unsetenv(name.c_str());
  }
  ~Variables() {
    for (const auto& [name, value] : old_) {
      if (value) ::setenv(name.c_str(), value->c_str(), 1);
      if (!value) ::unsetenv(name.c_str());
    }
  }

 private:
  void keep(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    old_.try_emplace(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  std::map<std::string, std::optional<std::string>> old_;
};

class S3Test : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!S3Server::missing().empty()) return;
    server = new S3Server;
    server->ask({{"do", "bucket"}, {"name", "corpus"}});
    for (const char* key : {"data/b/two.txt", "data/a/one.txt", "data/a/x-1.jsonl", "data/a/x-2.jsonl", "data/c.txt",
                            "data/_index.csv", "data/.hidden/three.txt", "data/deep/er/four.txt", "other.txt"}) {
      server->put("corpus", key, std::string("text of ") + key);
    }
  }
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }
  void SetUp() override {
    if (server == nullptr) GTEST_SKIP() << S3Server::missing();
    for (const char* name : {"AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN", "http_proxy", "all_proxy",
                             "HTTP_PROXY", "ALL_PROXY"}) {
      variables.unset(name);
    }
    variables.set("AWS_ENDPOINT_URL_S3", server->address());
    variables.set("AWS_ACCESS_KEY_ID", "AKIDTEST");
    variables.set("AWS_SECRET_ACCESS_KEY", "wJalrSecret");
    variables.set("AWS_REGION", "us-east-1");
    variables.set("AWS_EC2_METADATA_DISABLED", "true");
    variables.set("AWS_CONFIG_FILE", "/nonexistent/config");
    variables.set("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials");
    server->ask({{"do", "clear"}});
  }
  void TearDown() override {
    if (server != nullptr) server->ask({{"do", "clear"}});
  }

  static std::vector<std::string> names(const std::string& source) {
    std::vector<std::string> found;
    for (const SourceFile& file : list_s3_files(source, kinds)) found.push_back(file.name);
    return found;
  }
  static std::string text(const ByteSource& source, std::stop_token stop = {}) {
    std::string bytes(source.size(), '\0');
    source.read_at(0, std::as_writable_bytes(std::span(bytes)), stop);
    return bytes;
  }
  static SourceFile listed(const std::string& source) {
    const auto files = list_s3_files(source, kinds);
    if (files.size() != 1) throw std::runtime_error("not one file");
    return files.front();
  }
  static void anonymous(Variables& changed) {
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) changed.unset(name);
  }

  static inline S3Server* server = nullptr;
  Variables variables;
};

using Names = std::vector<std::string>;

TEST_F(S3Test, FolderObjectAndBucket) {
  const Names folder{"a/one.txt", "a/x-1.jsonl", "a/x-2.jsonl", "b/two.txt", "c.txt", "deep/er/four.txt"};
  EXPECT_EQ(names("s3://corpus/data"), folder);
  EXPECT_EQ(names("s3://corpus/data/"), folder);
  EXPECT_EQ(names("s3://corpus/data/a/one.txt"), Names{"one.txt"});
  EXPECT_EQ(names("s3://corpus").size(), 7U);
  const SourceFile file = listed("s3://corpus/data/a/one.txt");
  EXPECT_EQ(file.location, "s3://corpus/data/a/one.txt");
  EXPECT_EQ(file.size, 22U);
  EXPECT_EQ(file.version.size(), std::string("2026-11-30T14:53:30Z").size()) << file.version;
}

TEST_F(S3Test, PatternsDoNotCrossSlashes) {
  EXPECT_EQ(names("s3://corpus/data/*/x-*.jsonl"), (Names{"a/x-1.jsonl", "a/x-2.jsonl"}));
  EXPECT_EQ(names("s3://corpus/data/*.txt"), Names{"c.txt"});
  EXPECT_EQ(names("s3://corpus/data/a/x-[2-9].jsonl"), Names{"x-2.jsonl"});
  EXPECT_EQ(names("s3://corpus/*.txt"), Names{"other.txt"});
  EXPECT_EQ(names("s3://corpus/data/?"), (Names{"a/one.txt", "a/x-1.jsonl", "a/x-2.jsonl", "b/two.txt"}));
  EXPECT_HAS(error_of([] { names("s3://corpus/data/*/y-*"); }, ExitCode::usage), "no object matches");
  EXPECT_HAS(error_of([] { names("s3://corpus/data/*.csv"); }, ExitCode::usage), "data/_index.csv, which is not");
}

TEST_F(S3Test, StorageReadsThroughIt) {
  Storage storage;
  const auto files = storage.list("s3://corpus/data/a", kinds);
  ASSERT_EQ(files.size(), 3U);
  const auto file = storage.open(files[0]);
  EXPECT_TRUE(file->is_remote());
  EXPECT_EQ(file->name(), "s3://corpus/data/a/one.txt");
  EXPECT_EQ(text(*file), "text of data/a/one.txt");
  std::array<std::byte, 4> part{};
  file->read_at(8, part);
  EXPECT_EQ(std::memcmp(part.data(), "data", 4), 0);
  EXPECT_HAS(error_of([&] { file->read_at(20, part); }, ExitCode::failed), "past its end");
}

TEST_F(S3Test, LargeReadsComeInParts) {
  server->ask({{"do", "put"},
               {"bucket", "corpus"},
               {"key", "large/x.txt"},
               {"text", "0123456789abcde\n"},
               {"repeat", 1'100'000}});
  const auto file = open_s3_file(listed("s3://corpus/large/x.txt"));
  server->ask({{"do", "clear"}});
  std::string expected;
  for (int i = 0; i < 1'100'000; ++i) expected += "0123456789abcde\n";
  EXPECT_TRUE(text(*file) == expected);
  Names ranges;
  for (const Json& request : server->ask({{"do", "requests"}})) ranges.push_back(request.at("range"));
  EXPECT_EQ(ranges, (Names{"bytes=0-8388607", "bytes=8388608-16777215", "bytes=16777216-17599999"}));
}

TEST_F(S3Test, ManyThreadsReadOneFile) {
  const auto file = open_s3_file(listed("s3://corpus/data/a/one.txt"));
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(text(*file), "text of data/a/one.txt");
    });
  }
}

TEST_F(S3Test, WhatIsMissingIsNamedWithTheNearest) {
  EXPECT_HAS(error_of([] { names("s3://corpus/data/a/onne.txt"); }, ExitCode::usage),
             "did you mean 's3://corpus/data/a/one.txt'?");
  EXPECT_HAS(error_of([] { names("s3://corpus/dat"); }, ExitCode::usage), "did you mean 's3://corpus/data'?");
  EXPECT_HAS(error_of([] { names("s3://corpus/no/such.txt"); }, ExitCode::usage), "nor anything in s3://corpus/no/");
  EXPECT_HAS(error_of([] { names("s3://corpuss/data"); }, ExitCode::usage), "did you mean 's3://corpus'?");
  EXPECT_HAS(error_of([] { names("s3://nothing-like-it/x"); }, ExitCode::usage), "there is no such bucket");
  EXPECT_HAS(error_of([] { names("s3:///x"); }, ExitCode::usage), "names no bucket");
  EXPECT_HAS(error_of([] { names("s3://corpus/data/_index.csv"); }, ExitCode::usage), "is not a data file");
}

TEST_F(S3Test, AChangedObjectIsAnError) {
  server->put("corpus", "changing/x.txt", "as it was");
  server->put("corpus", "changing/y.txt", "as it was");
  server->put("corpus", "changing/z.txt", "as it was");
  const SourceFile x = listed("s3://corpus/changing/x.txt");
  const SourceFile y = listed("s3://corpus/changing/y.txt");
  const SourceFile z = listed("s3://corpus/changing/z.txt");
  server->ask(
      {{"do", "put"}, {"bucket", "corpus"}, {"key", "changing/long.txt"}, {"text", "0123456789"}, {"repeat", 9}});
  const auto shorter = open_s3_file(x);
  const auto much_shorter = open_s3_file(listed("s3://corpus/changing/long.txt"));
  const auto open = open_s3_file(y);
  server->put("corpus", "changing/x.txt", "short");
  server->put("corpus", "changing/long.txt", "0123456789012");
  EXPECT_HAS(error_of([&] { text(*much_shorter); }, ExitCode::failed), "was replaced while it was being read");
  std::array<std::byte, 4> beyond{};
  EXPECT_HAS(error_of([&] { much_shorter->read_at(80, beyond); }, ExitCode::failed), "was replaced while");
  EXPECT_HAS(error_of([&] { text(*shorter); }, ExitCode::failed), "was replaced while it was being read");
  EXPECT_HAS(error_of([&] { open_s3_file(x); }, ExitCode::failed), "had 9 bytes when it was listed and has 5 now");
  // Of the same size: the time of change has seconds, and the ETag is compared every two.
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  server->put("corpus", "changing/y.txt", "otherwise");
  EXPECT_HAS(error_of([&] { open_s3_file(y); }, ExitCode::failed), "was replaced since it was listed");
  EXPECT_HAS(error_of([&] { text(*open); }, ExitCode::failed), "was replaced while it was being read");
  server->ask({{"do", "delete"}, {"bucket", "corpus"}, {"key", "changing/z.txt"}});
  EXPECT_HAS(error_of([&] { open_s3_file(z); }, ExitCode::failed), "is gone since it was listed");
}

TEST_F(S3Test, WhatMayPassIsTriedAgain) {
  const SourceFile file = listed("s3://corpus/data/a/one.txt");
  const Json busy{{"do", "fault"}, {"path", "one.txt"}, {"method", "GET"},
                  {"times", 2},    {"status", 503},     {"code", "SlowDown"}};
  server->ask(busy);
  EXPECT_EQ(text(*open_s3_file(file)), "text of data/a/one.txt");
  server->ask({{"do", "fault"}, {"path", "one.txt"}, {"method", "GET"}, {"times", 1}, {"cut", 5}});
  EXPECT_EQ(text(*open_s3_file(file)), "text of data/a/one.txt");
  server->ask({{"do", "fault"}, {"path", "list-type=2"}, {"times", 1}, {"status", 500}, {"code", "InternalError"}});
  EXPECT_EQ(names("s3://corpus/data/a").size(), 3U);
}

TEST_F(S3Test, WhatDoesNotPassIsSaid) {
  const auto fault = [&](int status, const char* code, const char* message) {
    server->ask({{"do", "clear"}});
    server->ask({{"do", "fault"},
                 {"path", "list-type=2"},
                 {"times", 1000},
                 {"status", status},
                 {"code", code},
                 {"message", message}});
    return error_of([] { names("s3://corpus/data/"); }, ExitCode::failed);
  };
  EXPECT_HAS(fault(403, "AccessDenied", "Access Denied"), "access denied with the credentials in use");
  EXPECT_HAS(fault(400, "ExpiredToken", "The provided token has expired."), "session token has expired");
  EXPECT_HAS(fault(403, "InvalidAccessKeyId", "The key does not exist."), "does not take the credentials");
  EXPECT_HAS(fault(403, "SignatureDoesNotMatch", "The signature differs."), "does not take the credentials");
  EXPECT_HAS(fault(403, "RequestTimeTooSkewed", "The difference is too large."), "clock");
  EXPECT_HAS(fault(400, "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
             "AWS_REGION");
  EXPECT_HAS(fault(503, "SlowDown", "Please reduce your request rate."), "goes on answering with errors");
}

TEST_F(S3Test, ARefusalWithoutAWordIsAskedAgain) {
  const SourceFile file = listed("s3://corpus/data/a/one.txt");
  const auto open = open_s3_file(file);
  server->ask({{"do", "fault"},
               {"path", "corpus"},
               {"times", 1000},
               {"status", 400},
               {"code", "ExpiredToken"},
               {"message", "The provided token has expired."}});
  const auto source = [] { names("s3://corpus/data/a/one.txt"); };
  EXPECT_HAS(error_of(source, ExitCode::failed), "session token has expired");
  EXPECT_HAS(error_of([&] { open_s3_file(file); }, ExitCode::failed), "session token has expired");
  EXPECT_HAS(error_of([&] { text(*open); }, ExitCode::failed), "session token has expired");
  server->ask({{"do", "clear"}});
  server->ask({{"do", "fault"}, {"path", "one.txt"}, {"times", 1000}, {"status", 418}});
  EXPECT_HAS(error_of([&] { open_s3_file(file); }, ExitCode::failed), "without saying why (HTTP status 418)");
}

TEST_F(S3Test, WrongRegionNamesTheRightOne) {
  server->ask({{"do", "fault"},
               {"times", 1000},
               {"status", 301},
               {"code", "PermanentRedirect"},
               {"message", "The bucket must be addressed otherwise."},
               {"headers", {{"x-amz-bucket-region", "eu-west-1"}}}});
  EXPECT_HAS(error_of([] { names("s3://corpus/data/a/one.txt"); }, ExitCode::failed), "AWS_REGION=eu-west-1");
}

TEST_F(S3Test, AnonymousWhereThereAreNoCredentials) {
  server->put("corpus", "public/x.txt", "for all", true);
  Variables changed;
  anonymous(changed);
  server->ask({{"do", "clear"}});
  EXPECT_EQ(text(*open_s3_file(listed("s3://corpus/public/x.txt"))), "for all");
  for (const Json& request : server->ask({{"do", "requests"}})) EXPECT_FALSE(request.at("signed").get<bool>());
  const auto line = error_of([] { names("s3://corpus/data/a/one.txt"); }, ExitCode::failed);
  EXPECT_HAS(line, "no credentials were found");
  EXPECT_HAS(line, "AWS_ACCESS_KEY_ID");
}

TEST_F(S3Test, NoServer) {
  Variables changed;
  changed.set("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1");
  const auto line = error_of([] { names("s3://corpus/data"); }, ExitCode::failed);
  EXPECT_HAS(line, "no connection to http://127.0.0.1:1");
  EXPECT_HAS(line, "AWS_ENDPOINT_URL");
}

TEST_F(S3Test, AStopEndsAReadThatHangs) {
  const auto file = open_s3_file(listed("s3://corpus/data/a/one.txt"));
  server->ask({{"do", "fault"}, {"path", "one.txt"}, {"times", 1}, {"stall", true}});
  std::stop_source stop;
  std::jthread asker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  EXPECT_THROW(text(*file, stop.get_token()), Stopped);
  EXPECT_THROW(list_s3_files("s3://corpus/data", kinds, stop.get_token()), Stopped);
}

TEST_F(S3Test, TheFileSystemIsSharedByEnvironment) {
  const auto first = s3_file_system("corpus");
  EXPECT_EQ(first, s3_file_system("corpus"));
  Variables changed;
  changed.set("AWS_REGION", "eu-central-1");
  EXPECT_NE(first, s3_file_system("corpus"));
  EXPECT_EQ(s3_file_system("corpus")->region(), "eu-central-1");
}

}  // namespace
}  // namespace mythos
