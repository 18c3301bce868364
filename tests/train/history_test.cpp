// history.jsonl, and the story that `mythos inspect RUN` tells of it.
#include "train/history.h"

#include "train/inspect_run.h"
#include "train_testing.h"

namespace mythos::testing {
namespace {

class HistoryTest : public TrainTest {
 protected:
  // Warnings left out: there are such of the machine's speed.
  [[nodiscard]] Json history() const {
    Json kept = Json::array();
    for (const Json& e : read_history(tiny_.run())) {
      if (e["event"] != "warning") kept.push_back(e);
    }
    return kept;
  }
  [[nodiscard]] std::vector<std::string> events() const {
    std::vector<std::string> names;
    for (const Json& e : history()) names.push_back(e["event"]);
    return names;
  }
};

using Events = std::vector<std::string>;

TEST_F(HistoryTest, EveryStartWarningAndEnd) {
  const std::vector<std::string> all = {"train.steps=400", "checkpoint.every=1000"};
  start({"train.steps=400", "checkpoint.every=1000", "train.max_hours=1e-9"});
  EXPECT_EQ(events(), (Events{"start", "end"}));
  {
    const auto p = program(all);
    ASSERT_TRUE(p->wait_until([&] { return steps_in(tiny_.run() / "metrics.jsonl").size() > 5; })) << p->err();
    EXPECT_EQ(inspect_run(tiny_.run(), false)["state"], "running");
    p->signal(SIGKILL);
    p->wait();
  }
  EXPECT_EQ(events(), (Events{"start", "end", "start"}));
  const int64_t last = steps_in(tiny_.run() / "metrics.jsonl").back()["step"];
  EXPECT_TRUE(start(all).finished);
  const Json history = this->history();
  ASSERT_EQ(events(), (Events{"start", "end", "start", "lost", "start", "end"}));
  EXPECT_EQ(history[3]["step"], last);
  EXPECT_NE(history[3]["text"].get<std::string>().find(fmt::format("after step {}", last)), std::string::npos);
  EXPECT_EQ(history[4]["step"], 1);
  const std::string from = "went on from " + tiny_.checkpoint(1).string();
  EXPECT_NE(history[4]["text"].get<std::string>().find(from), std::string::npos) << history[4];
  EXPECT_EQ(history[5]["text"], "finished");
  EXPECT_EQ(history[5]["step"], 400);
  const std::string text = inspect_run_text(inspect_run(tiny_.run(), false));
  for (const Json& e : history) EXPECT_NE(text.find(e["text"].get<std::string>()), std::string::npos) << text;
}

TEST_F(HistoryTest, AWarningIsThereWithItsStep) {
  fs::create_directories(tiny_.run() / "checkpoints");
  const auto p = program({"train.steps=100000", "checkpoint.every=1000000"});
  ASSERT_TRUE(p->wait_until([&] { return steps_in(tiny_.run() / "metrics.jsonl").size() > 2; })) << p->err();
  fs::remove_all(tiny_.run() / "checkpoints");
  write_text(tiny_.run() / "checkpoints", "in the way");
  p->signal(SIGUSR1);
  const auto told = [&] {
    for (const Json& e : read_history(tiny_.run())) {
      if (e["event"] == "warning" && e["text"].get<std::string>().starts_with("no checkpoint at step")) return true;
    }
    return false;
  };
  EXPECT_TRUE(p->wait_until(told)) << p->err();
  for (const Json& e : read_history(tiny_.run())) {
    if (e["event"] == "warning") {
      EXPECT_GE(e["step"].get<int64_t>(), 3);
    }
  }
  p->signal(SIGTERM);
  EXPECT_EQ(p->wait(), 1) << "the last state could not be saved";
  const Json last = read_history(tiny_.run()).back();
  EXPECT_EQ(last["event"], "end");
  EXPECT_TRUE(last["text"].get<std::string>().starts_with("failed: ")) << last;
}

TEST_F(HistoryTest, ADamagedOrMissingFileIsNoError) {
  start({"train.max_hours=1e-9"});
  const Json whole = {{"time", "t"}, {"event", "end"}, {"step", 1}, {"text", "x"}};
  write_text(tiny_.run() / "history.jsonl", "{\"time\": 3}\n[]\nnonsense\n" + whole.dump() + "\n{\"ti");
  EXPECT_EQ(events(), Events{"end"});
  EXPECT_NE(inspect_run_text(inspect_run(tiny_.run(), false)).find("history      t  end"), std::string::npos);
  fs::remove(tiny_.run() / "history.jsonl");
  EXPECT_EQ(inspect_run(tiny_.run(), false)["history"], Json::array());
  EXPECT_TRUE(start().finished);
  EXPECT_EQ(events(), (Events{"start", "end"}));
}

}  // namespace
}  // namespace mythos::testing
