// `mythos plan` as it is typed.
#include "cli_testing.h"

#include "checkpoint/layout.h"

#include <filesystem>

namespace mythos::testing {
namespace {

class PlanTest : public CliTest {
 protected:
  static std::string shipped() { return std::string(MYTHOS_TEST_DIR) + "/../configs/mythos_300m.toml"; }
  // What must fail with this code and one line that has the words.
  void refused(std::vector<std::string> arguments, int code, const std::string& words) {
    arguments.insert(arguments.begin(), {"plan", shipped()});
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_NE(o.err.find("error: "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(words), std::string::npos) << o.err;
  }
};

TEST_F(PlanTest, ThePublishedRunComesOut) {
  const std::vector<std::string> base = {"plan",      shipped(),          "--gpu", "l40s", "--mfu",
                                         "reference", "--price-per-hour", "5"};
  auto with_json = base;
  with_json.emplace_back("--json");
  const Json json = json_of(with_json);
  EXPECT_EQ(json["parameters"], 339241922);
  EXPECT_EQ(json["steps"], 5744);
  EXPECT_NEAR(json["hours"].get<double>(), 153.2, 0.1);
  EXPECT_NEAR(json["cost_usd"].get<double>(), 766, 0.5);
  EXPECT_EQ(json["measured"], false);
  EXPECT_TRUE(json["quota"].is_null());
  const Outcome text = run(base);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part : {"153 h", "$766", "161 h", "44% MFU"})
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
}

TEST_F(PlanTest, WithoutAGpuByNameItMeasuresHereOnTheRunsOwnText) {
  const Outcome o = run({"plan", config(), "--measure", "2", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("measuring micro_batch 2"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("random token ids"), std::string::npos) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["measured"], true);
  EXPECT_EQ(json["micro_batch"], 2);
  EXPECT_EQ(json["grad_accum"], 2);
  EXPECT_EQ(json["steps"], 24);
  for (const char* key : {"tokens_per_s", "mfu", "hours", "memory_bytes", "peak_flops_per_s"})
    EXPECT_GT(json[key].get<double>(), 0) << key;
  EXPECT_TRUE(json["cost_usd"].is_null());
  EXPECT_NE(json["mfu_of"].get<std::string>().find("measured"), std::string::npos);
  EXPECT_LT(json["fast"]["hours"].get<double>(), json["slow"]["hours"].get<double>());
  EXPECT_EQ(json["checkpoint_bytes"], fs::file_size(checkpoint()));
  const Json priced = json_of({"plan", config(), "--measure", "1", "--price-per-hour", "2", "--json"});
  EXPECT_NEAR(priced["cost_usd"].get<double>(), 2 * priced["hours"].get<double>(), 1e-9);
}

TEST_F(PlanTest, AutoIsSearchedFor) {
  const Json json = json_of({"plan", config(), "--set", "train.micro_batch=auto", "--measure", "1", "--json"});
  EXPECT_GE(json["micro_batch"], 1);
  EXPECT_LE(json["micro_batch"], 4);
  EXPECT_NE(json["batch_reason"].get<std::string>().find("smallest"), std::string::npos);
}

TEST_F(PlanTest, NothingIsMeasuredWhereThatIsAsked) {
  const Json json = json_of({"plan", config(), "--measure", "0", "--json"});
  EXPECT_EQ(json["measured"], false);
  EXPECT_NE(json["speed_source"].get<std::string>().find("assumed"), std::string::npos);
}

TEST_F(PlanTest, TheDiskIsWhatARunWasSeenToUse) {
  // Checkpoints that wait for none other: at the most those kept and the one being written.
  const Json json = json_of(
      {"plan", config(), "--measure", "0", "--json", "--set", "checkpoint.every=2", "--set", "checkpoint.keep_last=2"});
  EXPECT_EQ(json["disk_needed_bytes"], 3 * json["checkpoint_bytes"].get<int64_t>());
}

TEST_F(PlanTest, TheWholeAdviceForAMachine) {
  const Outcome o =
      run({"plan", shipped(), "--instance", "g6e.8xlarge", "--compare", "--budget", "100", "--deadline", "12h"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"g6e.xlarge carries the same L40S", "local NVMe", "request-service-quota-increase",
                           "verdict", "fastest", "root volume"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << "\n" << o.out;
}

TEST_F(PlanTest, CheckAsksTheAwsCommandAndOnlyReads) {
  write_text(folder_ / "aws", "#!/bin/sh\necho \"$2\" >>'" + (folder_ / "calls").string() + "'\necho 12.0\n");
  fs::permissions(folder_ / "aws", fs::perms::owner_all);
  Program::Options options;
  options.environment = {{"PATH", folder_.path().string()}};
  const Outcome o = run({"plan", shipped(), "--instance", "g6e.8xlarge", "--check", "--json"}, options);
  ASSERT_EQ(o.code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["quota"]["present"], 12);
  EXPECT_EQ(json["quota"]["enough"], false);
  EXPECT_EQ(read_file(folder_ / "calls"), "get-service-quota\n");
  options.environment = {{"PATH", "/nowhere"}};
  const Outcome none = run({"plan", shipped(), "--instance", "g6e.8xlarge", "--check"}, options);
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("no aws command"), std::string::npos) << none.err;
}

TEST_F(PlanTest, AMachineOfOnesOwn) {
  write_text(folder_ / "mine.toml",
             "[[instance]]\nname = \"desk\"\ngpu = \"RTX 4090\"\ngpus = 1\nvcpus = 16\nmemory_gib = 64\nprice = 0.4\n");
  const Json json =
      json_of({"plan", shipped(), "--instance", "desk", "--hardware", (folder_ / "mine.toml").string(), "--json"});
  EXPECT_EQ(json["price_per_hour"], 0.4);
  EXPECT_TRUE(json["quota"].is_null());
}

TEST_F(PlanTest, ManyGpus) {
  const std::vector<std::string> base = {"plan", shipped(), "--instance", "p5.48xlarge", "--gpus", "1,8,512"};
  auto with_json = base;
  with_json.emplace_back("--json");
  const Json json = json_of(with_json);
  ASSERT_EQ(json["by_gpus"].size(), 3U);
  EXPECT_EQ(json["by_gpus"][0]["memory_bytes"], json["memory_bytes"]);
  EXPECT_EQ(json["by_gpus"][1]["machines"], 1);
  EXPECT_EQ(json["by_gpus"][2]["machines"], 64);
  EXPECT_GT(json["by_gpus"][2]["tokens_per_s"], json["by_gpus"][1]["tokens_per_s"]);
  EXPECT_NEAR(json["by_gpus"][2]["cost_usd"].get<double>(),
              64 * json["price_per_hour"].get<double>() * json["by_gpus"][2]["hours"].get<double>(), 1e-6);
  EXPECT_EQ(json["by_gpus_basis"]["link_bytes_per_s"], 450e9);
  EXPECT_EQ(json["by_gpus_basis"]["network_bytes_per_s"], 400e9);
  const Outcome text = run(base);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part : {"on many GPUs", "where it stops", "together", "memory of a GPU"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << text.out;
  // A card alone: its machine's network is not known unless it is given.
  const Json card = json_of({"plan", shipped(), "--gpu", "h100", "--gpus", "8,16", "--json"});
  EXPECT_TRUE(card["by_gpus"][0]["step_s"].is_number());
  EXPECT_TRUE(card["by_gpus"][1]["step_s"].is_null());
  const Json given =
      json_of({"plan", shipped(), "--gpu", "h100", "--gpus", "8,16", "--network-gbit-s", "3200", "--json"});
  EXPECT_EQ(given["by_gpus_basis"]["network_bytes_per_s"], 400e9);
  EXPECT_TRUE(given["by_gpus"][1]["step_s"].is_number());
  // Too large a model is an answer, not an error.
  const Json large = json_of({"plan", shipped(), "--set", "model.preset=mythos_1t", "--set", "train.micro_batch=1",
                              "--gpu", "h100", "--gpus", "4096", "--json"});
  EXPECT_EQ(large["by_gpus"][0]["memory_fits"], false);
  EXPECT_EQ(large["by_gpus_limit"]["fits"], false);
  EXPECT_FALSE(json_of({"plan", shipped(), "--gpu", "h100", "--json"}).contains("by_gpus"));
}

TEST_F(PlanTest, BadInputIsOneClearSentence) {
  refused({"--gpu", "h100", "--gpus", "0"}, 2, "--gpus is '0': '0' is no number from 1 to 65,536");
  refused({"--gpu", "h100", "--gpus", "x"}, 2, "--gpus is 'x'");
  refused({"--gpu", "h100", "--gpus", "1,,8"}, 2, "a number is missing");
  refused({"--gpu", "h100", "--gpus", ""}, 2, "--gpus");
  refused({"--gpus", "8"}, 2, "--gpus needs a GPU of the catalogue");
  refused({"--gpu", "h100", "--gpus", "8", "--network-gbit-s", "0"}, 2, "--network-gbit-s is 0");
  refused({"--gpu", "h100", "--network-gbit-s", "100"}, 2, "--network-gbit-s is for --gpus");
  refused({"--gpu", "L40Z"}, 2, "did you mean");
  refused({"--instance", "g6e.9xlarge"}, 2, "there is no instance 'g6e.9xlarge'");
  refused({"--gpu", "l40s", "--region", "us-east-11"}, 2, "us-east-1");
  refused({"--gpu", "t4"}, 3, "no bf16");
  refused({"--gpu", "l40s", "--set", "train.micro_batch=300"}, 2, "cannot be reached");
  refused({"--gpu", "l40s", "--set", "train.target_tokens=1000"}, 2, "less than one step");
  refused({"--gpu", "l40s", "--price-per-hour", "-5"}, 2, "--price-per-hour is -5");
  refused({"--gpu", "l40s", "--budget", "-1"}, 2, "--budget");
  refused({"--gpu", "l40s", "--budget", "100"}, 2, "needs a price");
  refused({"--gpu", "l40s", "--deadline", "soon"}, 2, "--deadline is 'soon'");
  refused({"--gpu", "l40s", "--mfu", "344%"}, 2, "--mfu");
  refused({"--check"}, 2, "--check needs an --instance");
  write_text(folder_ / "bad.toml", "[[gpu]]\nname = \"X\"\nmemory_mib = 3000\nbandwidth_gb_s = 100\n");
  refused({"--gpu", "l40s", "--hardware", (folder_ / "bad.toml").string()}, 2, "has no field 'bf16_tflops'");
}

}  // namespace
}  // namespace mythos::testing
