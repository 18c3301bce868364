// What is seen of a run while it trains and afterwards: curves, metrics, status, the terminal.
#include "../support/tensorboard.h"
#include "train/inspect_run.h"
#include "train/preflight.h"
#include "train/status.h"
#include "train_testing.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <regex>
#include <set>

namespace mythos::testing {
namespace {

class SeenTest : public TrainTest {};

TEST_F(SeenTest, ExpertsAndHaltingAreWrittenEveryLogIntervalAndChangeNothing) {
  start({"log.every=1"}, elsewhere("all"));
  start({"log.every=1000"}, elsewhere("none"));
  start({"log.every=5"});
  start({"log.every=1", "train.recompute=loop"}, elsewhere("all again"));
  start({"log.every=1000", "train.recompute=loop"}, elsewhere("none again"));
  expect_same_state(TinyRun::checkpoint_of(elsewhere("all again"), 24),
                    TinyRun::checkpoint_of(elsewhere("none again"), 24));
  for (const auto& folder : {elsewhere("all"), elsewhere("none")})
    expect_same_state(TinyRun::checkpoint_of(folder, 24), tiny_.checkpoint(24));
  std::set<int64_t> with;
  for (const Json& line : steps_in(tiny_.run() / "metrics.jsonl")) {
    if (!line.contains("experts")) continue;
    with.insert(line["step"].get<int64_t>());
    double sum = 0;
    for (const Json& share : line["experts"]["share"]) sum += share.get<double>();
    EXPECT_EQ(line["experts"]["share"].size(), 4U);
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_GE(line["experts"]["max_over_mean"].get<double>(), 1);
    EXPECT_EQ(line["halting"]["halted_by_loop"].size(), line["loops"].get<size_t>());
    EXPECT_GE(line["halting"]["mean_loops"].get<double>(), 1);
    EXPECT_LE(line["halting"]["mean_loops"].get<double>(), line["loops"].get<double>());
  }
  EXPECT_EQ(with, (std::set<int64_t>{1, 5, 10, 15, 20, 24}));
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find(" | experts "), std::string::npos) << text;
}

TEST_F(SeenTest, TensorBoardShowsEachStepOnceAfterKills) {
  if (const auto missing = TensorBoard::missing(); !missing.empty()) GTEST_SKIP() << missing;
  const std::vector<std::string> o = {"train.steps=60",     "checkpoint.every=7",  "log.eval_every=10",
                                      "log.every=3",        "log.sample_every=20", "log.prompts=[\"The old\"]",
                                      "log.sample_tokens=4"};
  int kills = 0;
  for (; kills < 3; ++kills) {
    const auto p = program(o);
    const int64_t before = newest(tiny_.run());
    p->wait_until([&] { return newest(tiny_.run()) > before + 7; });
    p->signal(SIGKILL);
    p->wait();
    EXPECT_NE(observe_run(tiny_.run()).state, "running");
  }
  start(o);
  const Json read = TensorBoard::read(tiny_.run() / "tensorboard");
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 60U);
  const std::vector<std::pair<const char*, const char*>> names = {
      {"train/loss", "loss"},   {"train/grad_norm", "grad_norm"},       {"train/lr", "lr"},
      {"train/loops", "loops"}, {"speed/tokens_per_s", "tokens_per_s"}, {"speed/memory_bytes", "memory_bytes"}};
  for (const auto& [curve, key] : names) {
    const Json& points = read["curves"][curve];
    ASSERT_EQ(points.size(), 60U) << curve;
    int64_t last = 0;
    for (const Json& point : points) {
      EXPECT_GT(point[0].get<int64_t>(), last) << curve;
      last = point[0];
      EXPECT_FLOAT_EQ(point[1].get<float>(), lines[static_cast<size_t>(last - 1)][key].get<float>()) << curve << last;
    }
    EXPECT_EQ(last, 60);
  }
  EXPECT_EQ(read["curves"]["held_out/loss"].back()[0], 60);
  EXPECT_EQ(read["curves"]["experts_share/03"].back()[0], 60);
  EXPECT_EQ(read["curves"]["halting/halted_by_1"].back()[0], 60);
  const Json& samples = read["texts"]["samples/0"];
  EXPECT_EQ(samples.front()[0], 0);
  EXPECT_EQ(samples.back()[0], 60);
  EXPECT_TRUE(samples.back()[1].get<std::string>().starts_with("The old|"));
}

TEST_F(SeenTest, ALineCutByAKillIsRepaired) {
  start({"train.max_hours=1e-9"});
  write_text(tiny_.folder() / "cut", read_file(tiny_.run() / "metrics.jsonl") + "{\"step\": 2, \"lo");
  fs::rename(tiny_.folder() / "cut", tiny_.run() / "metrics.jsonl");
  start({});
  expect_metrics(tiny_.run(), 24, 24);
}

TEST_F(SeenTest, ARotationInTheMiddleLosesNoLine) {
  const auto p = program({"train.steps=300", "log.every=1"});
  ASSERT_TRUE(p->wait_until([&] { return lines_of(tiny_.run() / "metrics.jsonl").size() >= 20; })) << p->err();
  for (const char* name : {"metrics.jsonl", "log.txt"})
    fs::rename(tiny_.run() / name, tiny_.run() / (std::string(name) + ".1"));
  EXPECT_EQ(p->wait(), 0) << p->err();
  auto lines = steps_in(tiny_.run() / "metrics.jsonl.1");
  EXPECT_LT(lines.size(), 300U);
  for (auto& line : steps_in(tiny_.run() / "metrics.jsonl")) lines.push_back(std::move(line));
  ASSERT_EQ(lines.size(), 300U);
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  const std::string text = read_file(tiny_.run() / "log.txt.1") + log_of(tiny_.run());
  for (int i = 1; i <= 300; ++i) EXPECT_NE(text.find(fmt::format("| step {:>6}/300 |", i)), std::string::npos) << i;
}

TEST_F(SeenTest, InspectTellsWhereARunStandsAndDisturbsNothing) {
  start({"train.steps=400", "checkpoint.every=100"}, elsewhere("alone"));
  const std::vector<std::string> o = {"train.steps=400", "checkpoint.every=100", "cost.price_per_hour=3600"};
  EXPECT_THROW(inspect_run(tiny_.run(), false), Error) << "there is none yet";
  const auto p = program(o);
  ASSERT_TRUE(p->wait_until([&] {
    const ObservedRun seen = observe_run(tiny_.run());
    return seen.status && seen.status->checkpoint_step >= 100;
  })) << p->err();
  for (int i = 0; i < 20; ++i) (void)inspect_run(tiny_.run(), i % 5 == 0);
  Json json = inspect_run(tiny_.run(), false);
  EXPECT_TRUE(json["state"] == "running" || json["state"] == "finished") << json;
  EXPECT_GE(json["step"].get<int64_t>(), 100);
  EXPECT_EQ(json["steps"], 400);
  EXPECT_EQ(json["newest_verified"]["verified"], "when written") << json;
  EXPECT_GE(json["newest_verified"]["step"].get<int64_t>(), 100);
  EXPECT_GT(json["cost_usd"].get<double>(), 0);
  EXPECT_EQ(p->wait(), 0) << p->err();
  expect_same_state(TinyRun::checkpoint_of(elsewhere("alone"), 400), tiny_.checkpoint(400));

  const auto before = snapshot(tiny_.run());
  json = inspect_run(tiny_.run(), true);
  EXPECT_EQ(json["state"], "finished");
  EXPECT_EQ(json["step"], 400);
  EXPECT_EQ(json["newest_verified"]["step"], 400);
  EXPECT_EQ(json["newest_verified"]["verified"], "now");
  EXPECT_EQ(json["eta_seconds"], 0.0);
  EXPECT_EQ(snapshot(tiny_.run()), before) << "something was changed";
  const std::string text = inspect_run_text(json);
  for (const char* part : {"finished", "400 of 400", "tokens/s", "$", "verified now"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(SeenTest, InspectTellsAKilledRunFromAStoppedOne) {
  const std::vector<std::string> o = {"train.steps=100000", "checkpoint.every=50"};
  {
    const auto p = program(o);
    ASSERT_TRUE(p->wait_until([&] { return newest(tiny_.run()) >= 100; })) << p->err();
    EXPECT_EQ(inspect_run(tiny_.run(), false)["state"], "running");
    p->signal(SIGKILL);
    p->wait();
  }
  Json json = inspect_run(tiny_.run(), false);
  EXPECT_EQ(json["state"], "crashed") << json;
  EXPECT_FALSE(json.contains("pid"));
  EXPECT_GE(json["step"].get<int64_t>(), 100);
  {
    const auto p = program(o);
    const auto lines = steps_in(tiny_.run() / "metrics.jsonl").size();
    ASSERT_TRUE(p->wait_until([&] { return steps_in(tiny_.run() / "metrics.jsonl").size() > lines + 60; })) << p->err();
    p->signal(SIGINT);
    EXPECT_EQ(p->wait(), 130);
  }
  json = inspect_run(tiny_.run(), false);
  EXPECT_EQ(json["state"], "stopped") << json;
  EXPECT_EQ(json["message"], "signal 2");
  EXPECT_EQ(json["step"], json["newest_verified"]["step"]);
  // A status of another shape, or none: the files still tell.
  write_text(tiny_.run() / "status.json", "[1, 2");
  json = inspect_run(tiny_.run(), false);
  EXPECT_EQ(json["state"], "unknown");
  EXPECT_EQ(json["newest_verified"]["verified"], "now");
  EXPECT_GE(json["step"].get<int64_t>(), 100);
}

// A terminal that goes: nohup and a write that fails are no reason to stop.
class Terminal {
 public:
  Terminal(const std::vector<std::string>& arguments) {
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
    char name[128];
    if (::ptsname_r(master_, name, sizeof(name)) != 0) return;
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), MYTHOS_BINARY);
    std::vector<char*> argv;
    for (auto& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setsid();
      const int slave = ::open(name, O_RDWR);
      ::ioctl(slave, TIOCSCTTY, 0);
      for (int fd = 0; fd < 3; ++fd) ::dup2(slave, fd);
      ::signal(SIGHUP, SIG_IGN);  // what nohup does
      ::setenv("GOMP_SPINCOUNT", "0", 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    close();
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] bool ready() const { return pid_ > 0; }
  /// Reads what is shown until `part` is.
  bool shows(const std::string& part) {
    char buffer[4096];
    while (shown_.find(part) == std::string::npos) {
      const ssize_t n = ::read(master_, buffer, sizeof(buffer));
      if (n <= 0) return false;
      shown_.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }
  [[nodiscard]] const std::string& shown() const { return shown_; }
  void close() {
    if (master_ >= 0) ::close(master_);
    master_ = -1;
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int master_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

TEST_F(SeenTest, ATerminalThatGoesDoesNotEndTheRun) {
  Terminal terminal({"train", tiny_.config().string(), "--set", "train.steps=300", "--set", "log.every=1", "--json"});
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  ASSERT_TRUE(terminal.shows("| step      5/300")) << terminal.shown();
  EXPECT_NE(terminal.shown().find("\r\033[K"), std::string::npos) << "no live line on a terminal";
  terminal.close();
  // Only its last word, the document on standard output, has nowhere to go.
  EXPECT_EQ(terminal.wait(), 1);
  EXPECT_EQ(newest(tiny_.run()), 300);
  expect_metrics(tiny_.run(), 300, 300);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("done: 300 steps"), std::string::npos);
  EXPECT_EQ(text.find('\033'), std::string::npos) << "a live line in the file";
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST_F(SeenTest, TheTableBeforeTheFirstStepHasTheNumbers) {
  start({"train.max_hours=1e-9"});
  std::string text = log_of(tiny_.run());
  for (const char* part : {"preflight\n", "  checkpoint   ok", "  data         ok", "  memory       ok",
                           "  checkpoints  ok", "  logs         ok", "  write test   ok"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(text.find("none yet: the run begins at step 0"), std::string::npos) << text;
  start({"train.max_hours=1e-9", "train.micro_batch=1", "checkpoint.every=7"});
  text = log_of(tiny_.run());
  EXPECT_NE(
      text.find("step_0000001.safetensors, verified; train.micro_batch was 2, now 1; checkpoint.every was 6, now 7"),
      std::string::npos)
      << text;
}

TEST_F(SeenTest, AModelTooLargeForTheMachineIsRefusedWithAWholeTable) {
  ::testing::internal::CaptureStderr();
  log::set_quiet(false);
  const auto line = error_of(request({"train.micro_batch=65536", "train.global_batch_tokens=0", "model.dim=4096"}),
                             ExitCode::refused);
  log::set_quiet(true);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("this run needs about"), std::string::npos) << line;
  EXPECT_NE(shown.find("  memory       REFUSED"), std::string::npos) << shown;
  EXPECT_NE(shown.find("  data         ok"), std::string::npos) << shown;
  EXPECT_FALSE(fs::exists(tiny_.run()));
}

// The address space ends in the middle of a step.
TEST_F(SeenTest, MemoryThatIsNotThereIsNamedWithItsTensor) {
  Program::Options options;
  options.folder = tiny_.folder();
  options.program = "/bin/sh";
  const Outcome o = run_program(
      {"-c", fmt::format(
                 "ulimit -v 4000000; exec {} train {} --force --set train.micro_batch=32768 --set train.seq_len=64 "
                 "--set train.global_batch_tokens=0 --set train.steps=1 --set train.recompute=none --set train.loops=3 "
                 "--set data.validation_documents=0",
                 MYTHOS_BINARY, tiny_.config().string())},
      options);
  EXPECT_EQ(o.code, 1) << o.err;
  const std::string last = o.err.substr(o.err.rfind("error: "));
  EXPECT_NE(last.find("out of memory in step 1: "), std::string::npos) << o.err;
  // Which one fails first differs by machine: a tensor that is asked for, or one that an op makes by itself, told by
  // what it is made of. Shapes are told in any case.
  const std::regex told("B more could not be had for (a tensor [^\\[]*|aten::[a-z_0-9]+ of )\\[[1-9]");
  EXPECT_TRUE(std::regex_search(last, told)) << o.err;
  EXPECT_EQ(o.err.find("RecordFunction"), std::string::npos) << o.err;
  EXPECT_NE(last.find("train.micro_batch"), std::string::npos) << o.err;
  EXPECT_NE(o.err.rfind("optimizer moments"), std::string::npos) << "no table";
  EXPECT_EQ(observe_run(tiny_.run()).state, "failed");
}

}  // namespace
}  // namespace mythos::testing
