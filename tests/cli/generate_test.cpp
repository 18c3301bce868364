// `mythos generate` as it is used: prompts from the command, a file, a pipe and a terminal.
#include "cli_testing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cstdlib>

namespace mythos::testing {
namespace {

class GenerateTest : public CliTest {
 protected:
  static std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> all = {"generate", checkpoint(), "--max-new-tokens", "10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::string text_of(const std::string& prompt) {
    const Outcome o = run(with({prompt}));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  }
};

// The most likely tokens: a text draws from a seed of its own place, so that one prompt given twice gives two texts.
TEST_F(GenerateTest, EveryTextOfABatchIsTheOneItIsAlone) {
  const std::vector<std::string> prompts = {"The old river", "A", "The third king finds the island, 7 times. The"};
  const auto likely = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--temperature", "0"});
    return with(std::move(more));
  };
  auto arguments = likely({"--json"});
  arguments.insert(arguments.end(), prompts.begin(), prompts.end());
  const Json all = json_of(arguments);
  ASSERT_EQ(all["generations"].size(), prompts.size());
  write_text(folder_ / "prompts.txt", prompts[0] + "\r\n\n" + prompts[1] + "\n" + prompts[2]);
  const Json of_file = json_of(likely({"--json", "--prompts", (folder_ / "prompts.txt").string()}));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json& one = all["generations"][i];
    EXPECT_EQ(one["prompt"], prompts[i]);
    EXPECT_EQ(one["ids"], json_of(likely({"--json", prompts[i]}))["ids"]);
    EXPECT_EQ(of_file["generations"][i]["ids"], one["ids"]);
  }
  const Outcome text = run(likely({prompts[0], prompts[1]}));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, fmt::format("> {}\n{}\n> {}\n{}", prompts[0], run(likely({prompts[0]})).out, prompts[1],
                                  run(likely({prompts[1]})).out));
  const Json twice = json_of(with({"--json", prompts[0], prompts[0]}))["generations"];
  EXPECT_NE(twice[0]["ids"], twice[1]["ids"]);
}

TEST_F(GenerateTest, PromptsComeLineByLineFromAPipe) {
  const Outcome o = with_input(with({}), "The old river\r\n\nA ship");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, text_of("The old river") + text_of("A ship"));
  EXPECT_NE(o.err.find("tokens/s"), std::string::npos) << o.err;
  EXPECT_EQ(with_input(with({}), "").code, 0);
}

TEST_F(GenerateTest, AStopStringEndsTheTextBeforeIt) {
  const Json whole = json_of(with({"The old river", "--json"}));
  const std::string text = whole["text"];
  ASSERT_GT(text.size(), 12U);
  // Two bytes that are no edge of a token, most likely.
  const std::string stop = text.substr(text.size() / 2, 2);
  const Json cut = json_of(with({"The old river", "--json", "--stop", "nowhere at all", "--stop", stop}));
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["stopped_by"], stop);
  EXPECT_LT(cut["ids"].size(), whole["ids"].size());
  EXPECT_EQ(run(with({"The old river", "--stop", ""})).code, 2);
}

TEST_F(GenerateTest, TheLogitsOfEachChoiceAreShownWhereAskedFor) {
  const Json json = json_of(with({"The old river", "--json", "--temperature", "0", "--top-logits", "4"}));
  ASSERT_EQ(json["top_logits"].size(), json["ids"].size());
  for (size_t i = 0; i < json["ids"].size(); ++i) {
    EXPECT_EQ(json["top_logits"][i]["ids"].size(), 4U);
    EXPECT_EQ(json["top_logits"][i]["logits"].size(), 4U);
    EXPECT_EQ(json["top_logits"][i]["ids"][0], json["ids"][i]);
  }
  EXPECT_FALSE(json_of(with({"The old river", "--json"})).contains("top_logits"));
  EXPECT_EQ(run(with({"The old river", "--top-logits", "4"})).code, 2) << "text has no place for them";
  EXPECT_EQ(run(with({"The old river", "--json", "--top-logits", "0"})).code, 2);
}

TEST_F(GenerateTest, NamesOfTypesAreTakenAsPeopleWriteThem) {
  EXPECT_EQ(run(with({"The", "--dtype", "bf16"})).out, run(with({"The", "--dtype", "bfloat16"})).out);
  EXPECT_EQ(run(with({"The", "--dtype", "fp32"})).out, text_of("The"));
}

TEST_F(GenerateTest, AdaptiveLoopsRunNoMoreThanTheyAreGiven) {
  const Json all = json_of(with({"The old river", "--json", "--loops", "3"}));
  EXPECT_EQ(all["mean_loops"], 3);
  const Json some = json_of(with({"The old river", "--json", "--loops", "3", "--adaptive"}));
  EXPECT_GE(some["mean_loops"], 1);
  EXPECT_LE(some["mean_loops"], 3);
  EXPECT_EQ(some["ids"].size(), 10U);
}

// A person at a terminal: lines are asked for and can be edited, a bad one is told of and the next is asked for, they
// are remembered, and Ctrl-D ends it.
TEST_F(GenerateTest, ATerminalAsksForLinesAndRemembersThem) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const std::string name = ::ptsname(terminal);
  Program::Options options;
  options.program = "/usr/bin/setsid";
  options.environment = {{"XDG_STATE_HOME", folder_.path().string()}, {"TERM", "dumb"}};
  const std::string command = fmt::format("exec \"{}\" generate \"{}\" --max-new-tokens 6 --temperature 0 <{} >{}",
                                          MYTHOS_BINARY, checkpoint(), name, name);
  Program p({"/bin/sh", "-c", command}, options);
  std::string seen;
  const auto wait_for = [&](const std::string& what) {
    for (int tries = 0; tries < 600 && seen.find(what) == std::string::npos; ++tries) {
      pollfd ready{terminal, POLLIN, 0};
      if (::poll(&ready, 1, 100) <= 0 || (ready.revents & POLLIN) == 0) continue;
      char bytes[4096];
      const auto n = ::read(terminal, bytes, sizeof bytes);
      if (n > 0) seen.append(bytes, static_cast<size_t>(n));
    }
    const bool found = seen.find(what) != std::string::npos;
    EXPECT_TRUE(found) << "no '" << what << "' in: " << seen << p.err();
    if (found) seen.erase(0, seen.find(what) + what.size());
    return found;
  };
  const auto type = [&](const std::string& text) {
    EXPECT_EQ(::write(terminal, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  ASSERT_TRUE(wait_for("prompt> "));
  type(
      "The ols\x7f"
      "d river\r");  // corrected with the erase key
  const std::string first =
      run({"generate", checkpoint(), "The old river", "--max-new-tokens", "6", "--temperature", "0"}).out;
  ASSERT_TRUE(wait_for(first.substr(0, first.find('\n'))));
  ASSERT_TRUE(wait_for("prompt> "));
  std::string too_long;
  for (int i = 0; i < 70; ++i) too_long += std::to_string(i % 10) + " ";
  type(too_long + "\r");
  ASSERT_TRUE(wait_for("prompt> "));
  EXPECT_NE(p.err().find("max_seq_len"), std::string::npos) << p.err();
  type("\x04");
  EXPECT_EQ(p.wait(), 0) << p.err();
  ::close(terminal);
  EXPECT_NE(read_file(folder_ / "mythos/history").find("river"), std::string::npos);
}

}  // namespace
}  // namespace mythos::testing
