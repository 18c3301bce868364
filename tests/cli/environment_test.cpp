// Nothing depends on the locale, and nothing touches the network.
#include "cli_testing.h"

#include "config/run_config.h"

#include <clocale>

namespace mythos::testing {
namespace {

class EnvironmentTest : public CliTest {
 protected:
  // A locale of this machine whose decimal point is a comma, else any other than C.
  static std::string other_locale() {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C.UTF-8"}) {
      const char* before = std::setlocale(LC_ALL, nullptr);
      const std::string old = before != nullptr ? before : "C";
      const bool there = std::setlocale(LC_ALL, name) != nullptr;
      std::setlocale(LC_ALL, old.c_str());
      if (there) return name;
    }
    return "de_DE.UTF-8";
  }
};

TEST_F(EnvironmentTest, NumbersReadAndPrintAlikeInEveryLocale) {
  Program::Options other;
  other.environment = {{"LC_ALL", other_locale()}, {"LANG", other_locale()}, {"LC_NUMERIC", other_locale()}};
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"inspect", "mythos_300m", "--vocab", "199998"},
           {"inspect", config(), "--json", "--set", "train.lr=2.5e-3", "--set", "train.min_lr_ratio=0.25"},
           {"eval", checkpoint(), "--json", "--loops", "2"},
           {"generate", checkpoint(), "The", "--temperature", "0.5", "--top-p", "0.9"}}) {
    const Outcome here = run(command);
    const Outcome there = run(command, other);
    EXPECT_EQ(there.code, 0) << there.err;
    EXPECT_EQ(here.out, there.out) << command[0];
  }
  const fs::path dir = folder_ / "run";
  const Outcome o = run({"train", config(), "--steps", "5", "--set", "train.lr=2.5e-3", "--set", "log.every=1", "--set",
                         "run.dir=" + dir.string()},
                        other);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(load_config(dir / "config.toml").train.lr, 2.5e-3);
  EXPECT_NE(o.err.find("| lr 1.87e-03 |"), std::string::npos) << o.err;
}

TEST_F(EnvironmentTest, EverythingWorksWithoutANetwork) {
  if (::access("/usr/bin/unshare", X_OK) != 0 || ::geteuid() != 0) GTEST_SKIP() << "needs root and unshare";
  Program::Options offline;
  offline.program = "/usr/bin/unshare";
  if (run({"-n", "true"}, offline).code != 0) GTEST_SKIP() << "a network of its own is not allowed here";
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"train", config(), "--steps", "3", "--set", "run.dir=" + (folder_ / "run").string()},
           {"eval", checkpoint(), "--loops", "2"},
           {"generate", checkpoint(), "The"},
           {"inspect", "mythos_300m"}}) {
    std::vector<std::string> arguments = {"-n", MYTHOS_BINARY};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Outcome o = run(arguments, offline);
    EXPECT_EQ(o.code, 0) << command[0] << ": " << o.err;
  }
}

// Addresses are only looked at by what reads the data.
TEST_F(EnvironmentTest, ChecksOfAConfigurationWithAddressesOpenNoSocket) {
  write_text(folder_ / "hub.toml",
             "[model]\npreset = \"mythos_300m\"\nvocab_size = 199998\n[tokenizer]\npath = \"hf://openai/gpt-oss-20b\"\n"
             "[data]\nsource = \"hf://datasets/HuggingFaceFW/fineweb-edu\"\n[train]\nmicro_batch = 3\n"
             "global_batch_tokens = 524288\ntarget_tokens = 3e9\n");
  const std::string hub = (folder_ / "hub.toml").string();
  EXPECT_EQ(json_of({"inspect", hub, "--json"})["steps"], 5744);
  if (::access("/usr/bin/strace", X_OK) != 0) return;
  Program::Options traced;
  traced.program = "/usr/bin/strace";
  const std::string trace = (folder_ / "trace").string();
  const Outcome o = run({"-f", "-e", "trace=socket,connect", "-o", trace, MYTHOS_BINARY, "inspect", hub}, traced);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(read_file(trace).find("AF_INET"), std::string::npos);
}

}  // namespace
}  // namespace mythos::testing
