// The eleven requests on record, and the advice that follows from them.
#include "plan/quota.h"

#include "base/error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace mythos {
namespace {
namespace fs = std::filesystem;

QuotaAdvice advice(const std::string& instance, const std::string& region, bool spot = false) {
  static const Catalogue catalogue = Catalogue::built_in();
  return *advise_quota(QuotaBook::built_in(), catalogue.instance(instance), region, spot);
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
using Values = std::vector<int64_t>;

TEST(Quota, TheRecordHasElevenRequests) {
  const QuotaBook book = QuotaBook::built_in();
  ASSERT_EQ(book.requests().size(), 11U);
  int virginia = 0, tokyo = 0, approved = 0, refused = 0;
  for (const QuotaRequest& r : book.requests()) {
    virginia += r.region == "us-east-1" ? 1 : 0;
    tokyo += r.region == "ap-northeast-1" ? 1 : 0;
    approved += r.approved() ? 1 : 0;
    refused += r.granted == 0 ? 1 : 0;
  }
  EXPECT_EQ(virginia, 7);
  EXPECT_EQ(tokyo, 4);
  EXPECT_EQ(approved, 5);
  EXPECT_EQ(refused, 2);
  ASSERT_EQ(book.quotas().size(), 4U);
  EXPECT_EQ(book.find("G and VT", false)->code, "L-DB2E81BA");
  EXPECT_EQ(book.find("P", false)->code, "L-417A185B");
  EXPECT_EQ(book.find("G and VT", true)->code, "L-3819A6DF");
  EXPECT_EQ(book.find("P", true)->code, "L-7212CCBC");
}

TEST(Quota, TheLadderFollowsWhatWasApproved) {
  EXPECT_EQ(advice("g6e.8xlarge", "us-east-1").ladder, (Values{12, 32, 48}));
  EXPECT_EQ(advice("g6e.8xlarge", "us-east-1").vcpus_needed, 32);
  EXPECT_EQ(advice("g6e.xlarge", "us-east-1").ladder, (Values{12}));
  EXPECT_EQ(advice("g6e.16xlarge", "us-east-1").ladder, Values{}) << "64 was refused";
  EXPECT_EQ(advice("p5.48xlarge", "us-east-1").ladder, Values{});
  EXPECT_EQ(advice("g6e.xlarge", "ap-northeast-1").ladder, (Values{4}));
  EXPECT_EQ(advice("g6e.2xlarge", "ap-northeast-1").ladder, (Values{8})) << "12 asked, 8 given";
  const QuotaAdvice tokyo = advice("g6e.8xlarge", "ap-northeast-1");
  EXPECT_EQ(tokyo.ladder, Values{});
  EXPECT_EQ(tokyo.likelier_region, "us-east-1");
  const QuotaAdvice elsewhere = advice("g6e.8xlarge", "eu-central-1");
  EXPECT_EQ(elsewhere.ladder, (Values{12, 32, 48}));
  EXPECT_EQ(elsewhere.ladder_from, "us-east-1");
  EXPECT_EQ(advice("g6e.2xlarge", "us-east-1", true).ladder, (Values{8}));
  EXPECT_EQ(advice("g6e.2xlarge", "us-east-1", true).quota.code, "L-3819A6DF");
  EXPECT_EQ(advice("p5.48xlarge", "us-east-1", true).ladder, Values{}) << "96 asked, 8 given";
}

TEST(Quota, TheTextHasEverythingARequestNeeds) {
  const QuotaAdvice a = advice("g6e.8xlarge", "us-east-1");
  const QuotaUse use{"339,241,922 parameters, 3.00 Gtokens", 44, 200};
  const std::string text = quota_text(a, use);
  for (const char* part :
       {"Running On-Demand G and VT instances", "L-DB2E81BA", "vCPUs, not machines", "a new account has 0",
        "12, then 32, then 48", "covers one", "35 minutes to 7 hours", "account team", "timeline", "64 asked: refused",
        "Primary Instance Type: All G and VT instances", "Limit name: Instance Limit", "339,241,922 parameters",
        "for about 1d 20h",
        "aws service-quotas get-service-quota --service-code ec2 --quota-code L-DB2E81BA --region us-east-1",
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA --desired-value "
        "48 --region us-east-1"}) {
    EXPECT_TRUE(holds(text, part)) << part << "\n" << text;
  }
  const Json json = to_json(a, use);
  EXPECT_EQ(json["name"], "Running On-Demand G and VT instances");
  EXPECT_EQ(json["code"], "L-DB2E81BA");
  EXPECT_EQ(json["unit"], "vCPUs");
  EXPECT_EQ(json["vcpus_needed"], 32);
  EXPECT_EQ(json["known_requests"].size(), 6U) << "four of Virginia, two of Tokyo";
}

TEST(Quota, AMachineWithoutAQuotaNeedsNone) {
  Instance mine;
  mine.vcpus = 4;
  EXPECT_FALSE(advise_quota(QuotaBook::built_in(), mine, "us-east-1", false).has_value());
}

class AwsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("mythos_aws_{}", ::getpid());
    fs::create_directories(folder_);
    path_ = std::getenv("PATH");
    ::setenv("PATH", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  // A command of that name that notes how it was called.
  void aws(const std::string& does) {
    std::ofstream(folder_ / "aws") << "#!/bin/sh\necho \"$@\" >>" << (folder_ / "calls").string() << "\n"
                                   << does << "\n";
    fs::permissions(folder_ / "aws", fs::perms::owner_all);
  }
  static double ask() { return present_quota(*QuotaBook::built_in().find("G and VT", false), "us-east-1"); }
  static std::string error() {
    try {
      ask();
    } catch (const Error& e) {
      EXPECT_EQ(static_cast<int>(e.code()), 1);
      return e.line();
    }
    return "no error";
  }
  fs::path folder_;
  std::string path_;
};

TEST_F(AwsTest, ThePresentQuotaIsReadAndNeverRaised) {
  aws("test -z \"$AWS_PAGER\" || exit 9\necho 48.0");
  EXPECT_DOUBLE_EQ(ask(), 48);
  std::ifstream in(folder_ / "calls");
  const std::string calls((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(calls,
            "service-quotas get-service-quota --service-code ec2 --quota-code L-DB2E81BA --region us-east-1 --query "
            "Quota.Value --output text\n");
}

TEST_F(AwsTest, WhatGoesWrongIsSaid) {
  EXPECT_TRUE(holds(error(), "there is no aws command here"));
  aws("echo 'Unable to locate credentials' >&2; echo more; exit 255");
  EXPECT_TRUE(holds(error(), "aws failed: Unable to locate credentials (")) << error();
  aws("echo None");
  EXPECT_TRUE(holds(error(), "'None'")) << error();
  aws("echo -3");
  EXPECT_TRUE(holds(error(), "'-3'")) << error();
  aws("true");
  EXPECT_TRUE(holds(error(), "no quota")) << error();
}

}  // namespace
}  // namespace mythos
