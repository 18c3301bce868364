// `mythos doctor`: what is there, what is missing, and that it changes nothing and shows no secret.
#include "cli_testing.h"

#include <map>

namespace mythos::testing {
namespace {

class DoctorTest : public CliTest {
 protected:
  struct Answer {
    int code = 0;
    std::string text;
    std::map<std::string, Json> checks;  // by what they are of
  };
  Answer ask(std::vector<std::string> arguments, const Program::Options& options = {}) {
    const auto before = snapshot(tiny().folder());
    arguments.insert(arguments.begin(), "doctor");
    arguments.emplace_back("--json");
    const Outcome o = run(arguments, options);
    EXPECT_EQ(snapshot(tiny().folder()), before);
    Answer answer{.code = o.code, .text = o.out + o.err, .checks = {}};
    const Json json = Json::parse(o.out, nullptr, false);
    if (json.is_discarded()) {
      ADD_FAILURE() << answer.text;
      return answer;
    }
    for (const Json& check : json["checks"]) answer.checks[check["what"]] = check;
    EXPECT_EQ(json["ok"], o.code == 0);
    return answer;
  }
  Answer ask_of_run(const std::vector<std::string>& overrides, const Program::Options& options = {}) {
    std::vector<std::string> arguments = {config()};
    for (const auto& o : overrides) arguments.insert(arguments.end(), {"--set", o});
    return ask(arguments, options);
  }
  std::string in_new_folder() { return "run.dir=" + (folder_ / "new").string(); }
};

TEST_F(DoctorTest, LooksAtTheMachineWithoutAConfiguration) {
  const Answer a = ask({});
  EXPECT_EQ(a.code, 0) << a.text;
  for (const char* what :
       {"program", "processor", "memory", "GPU", "disk", "temporary", "hub", "S3", "mpirun", "aws"}) {
    EXPECT_TRUE(a.checks.contains(what)) << what;
  }
  Program::Options nowhere;
  nowhere.environment = {{"PATH", folder_.path().string()}};
  Answer missing = ask({}, nowhere);
  EXPECT_EQ(missing.code, 0) << "no run on the CPU needs them";
  for (const char* what : {"mpirun", "aws"}) {
    EXPECT_EQ(missing.checks[what]["mark"], "note");
    EXPECT_NE(missing.checks[what]["advice"].get<std::string>().find("apt-get install"), std::string::npos);
  }
}

TEST_F(DoctorTest, ShowsNoSecret) {
  Program::Options options;
  options.environment = {{"HF_TOKEN", "hf_verysecret"},
                         {"HF_ENDPOINT", "https://user:verysecret@hub.example"},
                         {"AWS_ACCESS_KEY_ID", "verysecret"},
                         {"AWS_SECRET_ACCESS_KEY", "verysecret"}};
  Answer a = ask({}, options);
  EXPECT_EQ(a.text.find("verysecret"), std::string::npos) << a.text;
  EXPECT_NE(a.checks["hub"]["found"].get<std::string>().find("with a token"), std::string::npos) << a.text;
  EXPECT_NE(a.checks["S3"]["found"].get<std::string>().find("credentials in the environment"), std::string::npos);
}

TEST_F(DoctorTest, LooksAtAllThatARunNeeds) {
  Answer a = ask_of_run({in_new_folder()});
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_NE(a.checks["data"]["found"].get<std::string>().find("the first row"), std::string::npos);
  EXPECT_NE(a.checks["run"]["found"].get<std::string>().find("would begin at step 0"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  EXPECT_NE(ask_of_run({}).checks["run"]["found"].get<std::string>().find("would go on from step 12"),
            std::string::npos);
}

TEST_F(DoctorTest, SaysAllThatIsMissingAtOnce) {
  write_text(folder_ / "file", "no folder");
  Answer a = ask_of_run({in_new_folder(), "tokenizer.path=" + (folder_ / "none.json").string(),
                         "data.source=" + (folder_ / "none.txt").string(), "train.micro_batch=60000",
                         "train.global_batch_tokens=0", "train.seq_len=64", "model.dim=1024",
                         "checkpoint.dir=" + (folder_ / "file/checkpoints").string()});
  EXPECT_EQ(a.code, 1);
  for (const char* what : {"tokenizer", "data", "run memory", "write test"}) {
    EXPECT_EQ(a.checks[what]["mark"], "bad") << what << ": " << a.text;
    EXPECT_NE(a.checks[what]["advice"], "") << what;
  }
  const Outcome text = run({"doctor", config(), "--set", "tokenizer.path=" + (folder_ / "none.json").string()});
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("tokenizer    BAD"), std::string::npos) << text.out;
  EXPECT_EQ(run({"doctor", config(), "--set", "train.lrr=1"}).code, 2);
}

TEST_F(DoctorTest, AHubThatRefusesIsNamed) {
  Program::Options options;
  options.environment = {{"HF_ENDPOINT", "nonsense"}};
  EXPECT_EQ(ask({}, options).checks["hub"]["mark"], "bad");
}

TEST_F(DoctorTest, TellsOfAProcessThatTrainsThere) {
  Program p({"train", config(), "--set", in_new_folder(), "--set", "train.steps=1000000", "--set", "data.epochs=0"});
  ASSERT_TRUE(p.wait_until([&] { return fs::exists(folder_ / "new/metrics.jsonl"); })) << p.err();
  const Answer a = ask_of_run({in_new_folder()});
  EXPECT_EQ(a.code, 1);
  EXPECT_NE(a.text.find("a process is training in"), std::string::npos) << a.text;
}

}  // namespace
}  // namespace mythos::testing
