// `mythos train` on several ranks: what one would give, and what becomes of them when one goes wrong.
#ifdef MYTHOS_MPIRUN
#include "../support/mpirun.h"
#include "train_testing.h"

#include <numeric>

namespace mythos::testing {
namespace {

class RanksTest : public TrainTest {
 protected:
  void SetUp() override {
    write_text(tiny_.text(), joined(generated_documents(700'000)));  // more lanes than ranks
  }

  // Twelve rows a step, on any number of ranks up to four.
  const std::vector<std::string> common_ = {"train.micro_batch=1", "train.global_batch_tokens=192",
                                            "train.schedule=constant", "train.warmup_steps=0", "train.lr=1e-3"};

  std::vector<std::string> command(const std::vector<std::string>& overrides, const fs::path& folder) const {
    std::vector<std::string> arguments = {MYTHOS_BINARY, "train", tiny_.config().string(), "--force"};
    for (const auto& list : {common_, overrides}) {
      for (const auto& o : list) arguments.insert(arguments.end(), {"--set", o});
    }
    if (!folder.empty()) arguments.insert(arguments.end(), {"--set", "run.dir=" + folder.string()});
    return arguments;
  }
  Outcome on(int ranks, const std::vector<std::string>& overrides, const fs::path& folder = {}) const {
    auto arguments = command(overrides, folder);
    if (ranks > 1) return run_ranks(ranks, arguments);
    Program::Options options;
    options.program = arguments[0];
    arguments.erase(arguments.begin());
    return run_program(std::move(arguments), options);
  }
  std::unique_ptr<Program> started(int ranks, const std::vector<std::string>& overrides) const {
    return start_ranks(ranks, command(overrides, {}), tiny_.folder());
  }
  // Once it has done `steps` more steps.
  bool goes(Program& p, size_t steps) const {
    const size_t before = steps_in(tiny_.run() / "metrics.jsonl").size();
    return p.wait_until([&] { return steps_in(tiny_.run() / "metrics.jsonl").size() >= before + steps; });
  }
  static bool all_are_gone(const std::vector<pid_t>& processes) {
    const auto running = [](pid_t pid) {
      std::ifstream stat(fmt::format("/proc/{}/stat", pid));
      std::string line;
      std::getline(stat, line);
      const size_t name_ends = line.rfind(')');
      return name_ends != std::string::npos && line.size() > name_ends + 2 && line[name_ends + 2] != 'Z';
    };
    for (int tries = 0; tries < 100; ++tries) {
      if (std::none_of(processes.begin(), processes.end(), running)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  // Processes of the program that have this test's configuration.
  [[nodiscard]] int ranks_of_this_run() const {
    int n = 0;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator("/proc", ec)) {
      const std::string command =
          std::isdigit(entry.path().filename().string()[0]) != 0 ? bytes_of(entry.path() / "cmdline") : std::string();
      n += command.starts_with(MYTHOS_BINARY) && command.find(tiny_.config().string()) != std::string::npos ? 1 : 0;
    }
    return n;
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] size_t steps_done() const { return steps_in(tiny_.run() / "metrics.jsonl").size(); }

  // The same run up to rounding: every tensor within `tolerance` of its largest value, the data to the letter.
  static void expect_near(const fs::path& a, const fs::path& b, double tolerance = 1e-4) {
    const Checkpoint x = Checkpoint::open(a), y = Checkpoint::open(b);
    ASSERT_EQ(x.file.entries().size(), y.file.entries().size());
    for (size_t i = 0; i < x.file.entries().size(); ++i) {
      const auto& e = x.file.entries()[i];
      ASSERT_EQ(e.name, y.file.entries()[i].name);
      const auto p = x.file.data(e), q = y.file.data(y.file.entries()[i]);
      ASSERT_EQ(p.size(), q.size());
      double worst = 0, largest = 0;
      for (size_t at = 0; at < p.size(); at += sizeof(float)) {
        float u = 0, v = 0;
        std::memcpy(&u, p.data() + at, sizeof u);
        std::memcpy(&v, q.data() + at, sizeof v);
        worst = std::max(worst, std::abs(static_cast<double>(u) - v));
        largest = std::max(largest, std::abs(static_cast<double>(u)));
      }
      EXPECT_LE(worst, tolerance * largest) << e.name;
    }
    EXPECT_EQ(x.meta.step, y.meta.step);
    EXPECT_EQ(x.meta.tokens, y.meta.tokens);
    EXPECT_EQ(x.meta.data, y.meta.data);
    EXPECT_EQ(fs::file_size(a), fs::file_size(b));
  }
  // Every step once, with the same rows, loss, norm and experts.
  static void expect_same_metrics(const fs::path& a, const fs::path& b) {
    const auto x = steps_in(a / "metrics.jsonl"), y = steps_in(b / "metrics.jsonl");
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      for (const char* key : {"step", "tokens", "lr", "loops", "batch"}) EXPECT_EQ(x[i][key], y[i][key]) << key;
      for (const char* key : {"loss", "grad_norm"}) {
        EXPECT_NEAR(x[i][key].get<double>(), y[i][key].get<double>(), 1e-4 * x[i][key].get<double>()) << key;
      }
      if (x[i].contains("halting") && y[i].contains("halting")) {
        EXPECT_NEAR(x[i]["halting"]["mean_loops"].get<double>(), y[i]["halting"]["mean_loops"].get<double>(), 0.02);
      }
    }
  }
};

// P1, P3, D7: one run on 1, 2, 4, 3 and again 1 rank.
TEST_F(RanksTest, ARunMayGoOnWithAnyNumberOfThem) {
  const fs::path alone = elsewhere("alone");
  const Outcome expected = on(1, {"train.steps=20"}, alone);
  ASSERT_EQ(expected.code, 0) << expected.err;
  int64_t steps = 0;
  for (const int ranks : {1, 2, 4, 3, 1}) {
    steps += 4;
    const Outcome part = on(ranks, {fmt::format("train.steps={}", steps)});
    ASSERT_EQ(part.code, 0) << ranks << " ranks: " << part.out << part.err;
  }
  expect_near(TinyRun::checkpoint_of(alone, 20), tiny_.checkpoint(20));
  expect_same_metrics(alone, tiny_.run());
}

TEST_F(RanksTest, EveryWayOfSharingOutWritesTheSameCheckpoint) {
  const fs::path alone = elsewhere("alone");
  ASSERT_EQ(on(1, {"train.steps=6"}, alone).code, 0);
  for (const std::string mode : {"none", "optimizer", "full", "hybrid"}) {
    const fs::path folder = elsewhere(mode);
    const Outcome outcome = on(2,
                               {"train.steps=6", "train.sharding=" + mode, "log.eval_every=3",
                                "log.prompts=[\"The old\"]", "log.sample_every=3"},
                               folder);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_near(TinyRun::checkpoint_of(alone, 6), TinyRun::checkpoint_of(folder, 6));
    expect_same_metrics(alone, folder);
    EXPECT_NE(read_file(folder / "metrics.jsonl").find("held_out"), std::string::npos);
    EXPECT_NE(read_file(folder / "metrics.jsonl").find("samples"), std::string::npos);
  }
}

// Written by one rank that has everything, or by each its part: without clipping, whose norm is summed in parts, the
// same file to the last bit.
TEST_F(RanksTest, PartsMakeTheFileThatOneWouldWrite) {
  const auto in_mode = [&](const std::string& mode, const std::string& background) {
    const fs::path folder = elsewhere(mode + background);
    const Outcome outcome = on(3,
                               {"train.steps=8", "train.clip=0", "train.sharding=" + mode, "checkpoint.every=2",
                                "checkpoint.keep_last=4", "checkpoint.background=" + background},
                               folder);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("each its part") != std::string::npos, mode != "none") << outcome.err;
    return folder;
  };
  const fs::path gathered = in_mode("none", "false");
  for (const auto& [mode, background] : {std::pair("full", "false"), {"optimizer", "false"}, {"full", "true"}}) {
    const fs::path parts = in_mode(mode, background);
    EXPECT_EQ(newest(parts), 8);
    for (const int64_t step : CheckpointStore(parts / "checkpoints", 1).list()) {
      const Checkpoint a = Checkpoint::open(TinyRun::checkpoint_of(gathered, step));
      const Checkpoint b = Checkpoint::open(TinyRun::checkpoint_of(parts, step));
      b.verify();
      for (const auto& e : a.file.entries()) {
        const auto p = a.file.data(e), q = b.file.data(b.file.at(e.name));
        EXPECT_TRUE(std::equal(p.begin(), p.end(), q.begin(), q.end())) << mode << ", step " << step << ": " << e.name;
      }
      EXPECT_EQ(fs::file_size(a.path()), fs::file_size(b.path()));
    }
  }
}

// One rank's disk is broken: the others say so and go on, and the run ends well when it is whole again by the end.
TEST_F(RanksTest, APartThatCannotBeWrittenIsToldOfAndTriedAgain) {
  for (const std::string strike : {"ENOSPC write 1", "EROFS+ any 1"}) {
    const fs::path folder = elsewhere(strike.substr(0, 5));
    auto arguments = mpirun_options(3);
    const auto train = command({"train.steps=9", "checkpoint.every=3", "checkpoint.background=true"}, folder);
    std::string line = fmt::format(
        "if [ $OMPI_COMM_WORLD_RANK = 2 ]; then export LD_PRELOAD={} MYTHOS_STRIKE_FOLDER={} MYTHOS_STRIKE='{}'; fi; "
        "exec",
        MYTHOS_STRIKE_LIBRARY, (folder / "checkpoints").string(), strike);
    for (const auto& word : train) line += " '" + word + "'";
    arguments.insert(arguments.end(), {"sh", "-c", line});
    const Outcome outcome = run_program(arguments, mpirun_program(tiny_.folder()));
    EXPECT_NE(outcome.err.find("no checkpoint at step 3"), std::string::npos) << outcome.err;
    if (strike == "ENOSPC write 1") {
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_NE(outcome.err.find("rank 2 could not write its part"), std::string::npos) << outcome.err;
      EXPECT_EQ(newest(folder), 9);
    } else {
      EXPECT_EQ(outcome.code, 1) << outcome.err;
      EXPECT_EQ(newest(folder), 0);
    }
  }
}

// Killed at any instant of a slow save: what is there is good, and is gone on from.
TEST_F(RanksTest, OneThatIsKilledWhileItWritesItsPart) {
  const std::vector<std::string> o = {"train.steps=40", "checkpoint.every=4", "checkpoint.background=true",
                                      "train.peer_timeout=5"};
  const fs::path alone = elsewhere("alone");
  ASSERT_EQ(on(2, o, alone).code, 0);
  const auto bytes = fs::file_size(TinyRun::checkpoint_of(alone, 40));
  Random random(5);
  for (int kill = 0; kill < 6; ++kill) {
    auto options = mpirun_program(tiny_.folder());
    options.environment.insert(options.environment.end(),
                               {{"LD_PRELOAD", MYTHOS_STRIKE_LIBRARY},
                                {"MYTHOS_STRIKE_FOLDER", (tiny_.run() / "checkpoints").string()},
                                {"MYTHOS_SLOW", std::to_string(bytes)}});
    auto arguments = mpirun_options(2);
    const auto train = command(o, {});
    arguments.insert(arguments.end(), train.begin(), train.end());
    Program p(std::move(arguments), options);
    ASSERT_TRUE(goes(p, 4) || p.ended()) << p.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(900)));
    const auto processes = processes_of(p.pid(), 2);
    if (processes[1] != 0) ::kill(processes[1], SIGKILL);
    p.wait();
    EXPECT_TRUE(all_are_gone(processes));
    if (newest(tiny_.run()) == 40) break;
  }
  ASSERT_EQ(on(2, o).code, 0);
  expect_near(TinyRun::checkpoint_of(alone, 40), tiny_.checkpoint(40));
  for (const auto& entry : fs::directory_iterator(tiny_.run() / "checkpoints")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step_")) << entry.path();
  }
}

// P7 (e)
TEST_F(RanksTest, ASignalToOneOfThemSavesOnceAndTogether) {
  const fs::path alone = elsewhere("alone");
  const std::vector<std::string> o = {"train.steps=60", "checkpoint.every=1000"};
  ASSERT_EQ(on(1, o, alone).code, 0);
  for (const int rank : {1, 0}) {
    const auto p = started(3, o);
    ASSERT_TRUE(goes(*p, 3)) << p->err();
    const auto processes = processes_of(p->pid(), 3);
    ASSERT_NE(processes[static_cast<size_t>(rank)], 0);
    ::kill(processes[static_cast<size_t>(rank)], SIGTERM);
    EXPECT_EQ(p->wait(), 128 + SIGTERM) << p->err();
    EXPECT_EQ(newest(tiny_.run()), static_cast<int64_t>(steps_done()));
    EXPECT_LT(steps_done(), 60U);
  }
  ASSERT_EQ(on(2, o).code, 0);
  expect_near(TinyRun::checkpoint_of(alone, 60), tiny_.checkpoint(60));
  expect_same_metrics(alone, tiny_.run());
}

// A rank that is killed, or stands still, takes the others with it; what is there is enough to go on.
TEST_F(RanksTest, OneThatIsLostEndsTheOthersWithItsName) {
  const std::vector<std::string> o = {"train.steps=2000", "checkpoint.every=3", "train.peer_timeout=3"};
  for (const auto& [rank, number] : {std::pair(1, SIGKILL), {0, SIGKILL}, {2, SIGSTOP}, {0, SIGSTOP}}) {
    const auto p = started(3, o);
    ASSERT_TRUE(goes(*p, 5)) << p->err();
    const auto processes = processes_of(p->pid(), 3);
    const pid_t victim = processes[static_cast<size_t>(rank)];
    ASSERT_NE(victim, 0);
    ::kill(victim, number);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(p->wait_until([&] { return p->ended(); })) << "the others go on waiting";
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
    EXPECT_NE(p->wait(), 0);
    const std::string said = p->err();
    EXPECT_NE(said.find(fmt::format("rank {} of 3", rank)), std::string::npos) << said;
    EXPECT_NE(said.find("in step "), std::string::npos) << said;
    EXPECT_TRUE(all_are_gone(processes)) << "a process is left over";
  }
  const int64_t step = newest(tiny_.run());
  EXPECT_GE(step, 3);
  const Outcome again = on(2, {"train.steps=2000", "train.max_hours=1e-9"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(newest(tiny_.run()), step + 1);
}

// P6: nobody takes a rank that saves for lost, and all of them fail where a save does.
TEST_F(RanksTest, ASlowSaveIsWaitedForAndOneThatFailsEndsThemAll) {
  const std::vector<std::string> o = {"train.steps=3", "train.peer_timeout=1.5", "checkpoint.every=1000"};
  ASSERT_EQ(on(2, o, elsewhere("quick")).code, 0);
  const auto bytes = fs::file_size(TinyRun::checkpoint_of(elsewhere("quick"), 3));
  auto options = mpirun_program(tiny_.folder());
  options.environment.insert(options.environment.end(),
                             {{"LD_PRELOAD", MYTHOS_STRIKE_LIBRARY},
                              {"MYTHOS_STRIKE_FOLDER", (tiny_.run() / "checkpoints").string()},
                              {"MYTHOS_SLOW", std::to_string(bytes / 6)}});
  auto arguments = mpirun_options(2);
  const auto train = command(o, {});
  arguments.insert(arguments.end(), train.begin(), train.end());
  const auto begin = std::chrono::steady_clock::now();
  const Outcome slow = run_program(arguments, options);
  EXPECT_EQ(slow.code, 0) << slow.err;
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "the save was not slow";
  EXPECT_EQ(newest(tiny_.run()), 3);

  const auto p = started(2, {"train.steps=60", "checkpoint.every=1000"});
  ASSERT_TRUE(goes(*p, 3)) << p->err();
  const auto processes = processes_of(p->pid(), 2);
  fs::rename(tiny_.run() / "checkpoints", tiny_.run() / "away");
  write_text(tiny_.run() / "checkpoints", "no folder");
  EXPECT_EQ(p->wait(), 1) << p->err();
  EXPECT_TRUE(all_are_gone(processes));
}

// Two machines, as far as this one can play them (tests/support/two_machines): other host names, a network between
// them.
TEST_F(RanksTest, TwoMachinesAreOneRunUntilTheLinkBreaks) {
  if (std::system("unshare --net --uts ip link >/dev/null 2>&1") != 0) GTEST_SKIP() << "no rights for namespaces";
  const auto on_two = [&](const std::vector<std::string>& overrides, const std::string& cut) {
    auto arguments = command(overrides, {});
    auto options = mpirun_program(tiny_.folder());
    options.program = MYTHOS_TWO_MACHINES;
    if (!cut.empty()) options.environment.emplace_back("MYTHOS_CUT_WHEN", cut);
    return std::make_unique<Program>(std::move(arguments), options);
  };
  const fs::path alone = elsewhere("alone");
  ASSERT_EQ(on(1, {"train.steps=8"}, alone).code, 0);
  const auto whole = on_two({"train.steps=8"}, "");
  ASSERT_EQ(whole->wait(), 0) << whole->err();
  expect_near(TinyRun::checkpoint_of(alone, 8), tiny_.checkpoint(8));
  expect_same_metrics(alone, tiny_.run());

  const fs::path cut = elsewhere("cut");
  const std::vector<std::string> more = {"train.steps=100000", "checkpoint.every=4", "train.peer_timeout=3"};
  const auto broken = on_two(more, cut.string());
  ASSERT_TRUE(goes(*broken, 6)) << broken->err();
  write_text(cut, "");
  // mpirun itself goes on waiting for the other machine; its ranks do not.
  ASSERT_TRUE(broken->wait_until([&] { return ranks_of_this_run() == 0; })) << "they wait for each other for ever";
  broken->signal(SIGTERM);
  EXPECT_NE(broken->wait(), 0);
  EXPECT_NE(broken->err().find("was not heard of for"), std::string::npos) << broken->err();
  const int64_t step = newest(tiny_.run());
  EXPECT_GE(step, 12);
  EXPECT_EQ(on(2, {"train.steps=100000", "train.max_hours=1e-9"}).code, 0);
  EXPECT_EQ(newest(tiny_.run()), step + 1);
}

// D8
TEST_F(RanksTest, DataThatEndsEndsThemAllAtTheSameStep) {
  const Outcome outcome =
      on(3, {"train.steps=100000", "data.epochs=1", "train.seq_len=64", "train.global_batch_tokens=768"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("the data ended after"), std::string::npos) << outcome.err;
  EXPECT_EQ(newest(tiny_.run()), static_cast<int64_t>(steps_done()));
  EXPECT_GT(steps_done(), 10U);
}

// D8: more ranks than there is to share out, and what is wrong on all of them: said, and over.
TEST_F(RanksTest, WhatIsRefusedIsRefusedByAll) {
  write_text(tiny_.text(), joined(generated_documents(60'000)));
  const Outcome outcome = on(3, {"train.steps=4"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("ranks cannot share"), std::string::npos) << outcome.err;
  const Outcome wrong = on(2, {"train.sharding=some"});
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_FALSE(fs::exists(tiny_.run()));
}

// `--nproc N` starts the ranks itself; Ctrl-C is passed on to them, and they save.
TEST_F(RanksTest, NprocStartsThem) {
  const auto arguments = [&](const std::string& steps) {
    auto all = command({"train.steps=" + steps, "checkpoint.every=1000"}, {});
    all.erase(all.begin());
    all.insert(all.end(), {"--nproc", "2"});
    return all;
  };
  Program::Options options;
  options.folder = tiny_.folder();
  Program p(arguments("2000"), options);
  ASSERT_TRUE(goes(p, 3)) << p.err();
  p.signal(SIGINT);
  EXPECT_EQ(p.wait(), 128 + SIGINT) << p.err();
  EXPECT_EQ(newest(tiny_.run()), static_cast<int64_t>(steps_done()));
  const Outcome finished = run_program(arguments(std::to_string(steps_done() + 2)), options);
  EXPECT_EQ(finished.code, 0) << finished.err;
}

}  // namespace
}  // namespace mythos::testing
#endif
