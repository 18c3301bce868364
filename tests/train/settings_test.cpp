// Starting again with the same or with other settings.
#include "train_testing.h"

#include "base/lock.h"
#include "train/metrics.h"

#include <fmt/ranges.h>

#include <clocale>
#include <regex>

namespace mythos::testing {
namespace {

class SettingsTest : public TrainTest {
 protected:
  // A start that must be refused, and change nothing.
  std::string refused_request(const TrainRequest& r, ExitCode code) {
    const auto before = snapshot(tiny_.folder());
    std::string line = error_of(r, code);
    EXPECT_EQ(snapshot(tiny_.folder()), before) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    return line;
  }
  std::string refused(std::vector<std::string> overrides, ExitCode code) {
    return refused_request(request(std::move(overrides)), code);
  }
};

TEST_F(SettingsTest, AFinishedRunSaysSoAndChangesNothing) {
  start();
  const auto before = snapshot(tiny_.run());
  Program::Options options;
  options.folder = tiny_.folder();
  const Outcome o = run_program({"train", tiny_.config(), "--json"}, options);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("is finished: 24 of 24 steps"), std::string::npos) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["finished"], true);
  EXPECT_EQ(json["step"], 24);
  EXPECT_EQ(json["checkpoint"], tiny_.checkpoint(24).string());
  EXPECT_EQ(snapshot(tiny_.run()), before);
}

// R2
TEST_F(SettingsTest, MoreStepsAreRefusedUnlessForcedAndBothLearningRatesShown) {
  start();
  TrainRequest more = request();
  more.steps = 36;
  auto line = refused_request(more, ExitCode::refused);
  EXPECT_NE(line.find("train.steps was 24, now 36"), std::string::npos) << line;
  EXPECT_NE(line.find("--force"), std::string::npos) << line;
  more.force = true;
  EXPECT_EQ(go(more).step, 36);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("going on although train.steps was 24, now 36"), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("learning rate of step 25: {:.6e} with the old settings (24 steps), {:.6e} with the "
                                  "new (36 steps)",
                                  closed_form(24, 24), closed_form(24, 36))),
            std::string::npos)
      << text;
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 36U);
  for (int64_t i = 0; i < 36; ++i)
    EXPECT_NEAR(lines[static_cast<size_t>(i)]["lr"].get<double>(), closed_form(i, i < 24 ? 24 : 36), 1e-14) << i + 1;
  // The forced settings are the run's own from now on.
  more.force = false;
  EXPECT_TRUE(go(more).finished);
}

TEST_F(SettingsTest, FreshSetsTheOldRunAsideAndDeletesNothing) {
  start();
  auto old = snapshot(tiny_.run());
  TrainRequest fresh = request();
  fresh.fresh = true;
  EXPECT_EQ(go(fresh).step, 24);
  EXPECT_EQ(snapshot(tiny_.run().string() + ".1"), old);
  expect_same_state(tiny_.checkpoint(24), tiny_.run().string() + ".1/checkpoints/step_0000024.safetensors");
  expect_metrics(tiny_.run(), 24, 24);
  old = snapshot(tiny_.run());
  fresh.overrides = {"run.dir=" + tiny_.run().string() + "/"};
  EXPECT_EQ(go(fresh).step, 24);
  EXPECT_EQ(snapshot(tiny_.run().string() + ".2"), old);
  EXPECT_EQ(snapshot(tiny_.run().string() + ".1").size(), old.size());
  // Nothing is set aside for a run that cannot begin.
  write_text(tiny_.folder() / "short.txt", "Too short.\n");
  fresh.overrides = {"data.source=" + (tiny_.folder() / "short.txt").string(), "data.validation_documents=0"};
  refused_request(fresh, ExitCode::usage);
  fresh.overrides = {};
  fresh.from = tiny_.folder() / "none.safetensors";
  refused_request(fresh, ExitCode::usage);
}

TEST_F(SettingsTest, FreshSetsCheckpointsInAFolderOfTheirOwnAsideToo) {
  const std::vector<std::string> o = {"checkpoint.dir=" + (tiny_.folder() / "kept").string()};
  start(o);
  const auto old = snapshot(tiny_.folder() / "kept");
  EXPECT_EQ(old.size(), 3U);
  TrainRequest fresh = request(o);
  fresh.fresh = true;
  go(fresh);
  EXPECT_EQ(snapshot(tiny_.folder() / "kept.1"), old);
  EXPECT_EQ(steps_in(tiny_.run() / "metrics.jsonl").size(), 24U) << "it did not begin anew";
}

TEST_F(SettingsTest, AnotherModelTokenizerOrLengthIsRefusedByName) {
  start();
  auto line = refused({"model.dim=32", "model.lora_rank=4"}, ExitCode::usage);
  EXPECT_NE(line.find("dim is 16 there, 32 here"), std::string::npos) << line;
  EXPECT_NE(line.find("lora_rank is 2 there, 4 here"), std::string::npos) << line;
  line = refused({"train.seq_len=32"}, ExitCode::refused);
  EXPECT_NE(line.find("train.seq_len was 16, now 32"), std::string::npos) << line;
  const Tokenizer other = small_tokenizer(generated_documents(30'000, 99));
  other.save(tiny_.folder() / "other.json");
  ASSERT_EQ(other.n_ids(), Tokenizer::load(tiny_.tokenizer()).n_ids());
  line = refused({"tokenizer.path=" + (tiny_.folder() / "other.json").string()}, ExitCode::usage);
  EXPECT_NE(line.find("another tokenizer"), std::string::npos) << line;
  EXPECT_NE(line.find(other.fingerprint()), std::string::npos) << line;
  line = refused({"train.lr=1e-3", "train.weight_decay=0.2", "data.lanes=4"}, ExitCode::refused);
  for (const char* text :
       {"train.lr was 0.003, now 0.001", "train.weight_decay was 0.1, now 0.2", "data.lanes was 16, now 4"})
    EXPECT_NE(line.find(text), std::string::npos) << line;
}

// D4, D5: the position belongs to the data it was saved with.
TEST_F(SettingsTest, ChangedDataIsRefusedAndForcedBeginsAtItsStart) {
  start({"train.max_hours=1e-9"});
  write_text(tiny_.text(), joined(generated_documents(90'000, 4)));
  const auto line = refused_request(request(), ExitCode::refused);
  TrainRequest forced = request();
  forced.force = true;
  EXPECT_EQ(go(forced).step, 24);
  EXPECT_NE(log_of(tiny_.run()).find("the data begins at its start again"), std::string::npos);
  expect_metrics(tiny_.run(), 24, 24);
}

TEST_F(SettingsTest, ForcedIntoAnotherRowLengthTheDataBeginsAtItsStart) {
  start({"train.max_hours=1e-9"});
  TrainRequest forced = request({"train.seq_len=32"});
  forced.force = true;
  EXPECT_EQ(go(forced).step, 24);
}

TEST_F(SettingsTest, AnotherMicroBatchIsAllowedSaidAndCountedRight) {
  const std::vector<std::string> target = {"train.steps=0", "train.target_tokens=1536"};
  auto one = target;
  one.emplace_back("train.max_hours=1e-9");
  for (int i = 0; i < 5; ++i) start(one);
  ASSERT_EQ(newest(tiny_.run()), 5);
  auto other = target;
  other.emplace_back("train.micro_batch=3");  // 1 x 3 x 16 = 48 tokens a step, 32 steps
  const TrainResult r = start(other);
  EXPECT_EQ(r.steps, 32);
  EXPECT_EQ(r.tokens, 5 * 64 + 27 * 48);
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 32U);
  EXPECT_EQ(lines[4]["tokens"], 320);
  EXPECT_EQ(lines[5]["tokens"], 368);
  const Checkpoint c = Checkpoint::open(tiny_.checkpoint(32));
  EXPECT_EQ(c.meta.data["rows"], 5 * 4 + 27 * 3);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("train.micro_batch was 2, now 3"), std::string::npos) << text;
  EXPECT_NE(text.find("learning rate of step 6: "), std::string::npos) << text;
  // With the same tokens a step, another micro-batch gives the same numbers but for rounding.
  start({"train.micro_batch=1"}, elsewhere("one"));
  start({}, elsewhere("two"));
  const auto a = steps_in(elsewhere("one") / "metrics.jsonl");
  const auto b = steps_in(elsewhere("two") / "metrics.jsonl");
  for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(a[i]["loss"].get<double>(), b[i]["loss"].get<double>(), 1e-3);
}

TEST_F(SettingsTest, OneFolderHasOneTrainer) {
  {
    const mythos::Run first = prepare_run(request());
    auto line = error_of(request(), ExitCode::refused);
    EXPECT_NE(line.find("another process is training"), std::string::npos) << line;
    TrainRequest fresh = request();
    fresh.fresh = true;
    line = error_of(fresh, ExitCode::refused);
    EXPECT_NE(line.find("another process is training"), std::string::npos) << line;
    Program::Options options;
    options.folder = tiny_.folder();
    const Outcome o = run_program({"train", tiny_.config()}, options);
    EXPECT_EQ(o.code, 3) << o.err;
    // A run of another name over the same checkpoints is no better.
    EXPECT_EQ(fs::exists(tiny_.run().string() + ".1"), false);
  }
  {
    const std::string shared = "checkpoint.dir=" + (tiny_.folder() / "kept").string();
    const mythos::Run first = prepare_run(request({shared}, elsewhere("a")));
    error_of(request({shared}, elsewhere("b")), ExitCode::refused);
  }
  EXPECT_EQ(start().step, 24) << "a lock outlives its holder";
}

TEST_F(SettingsTest, ARunBeginsFromAnotherRunsCheckpoint) {
  start({"train.steps=12"}, elsewhere());
  TrainRequest from = request();
  from.from = TinyRun::checkpoint_of(elsewhere(), 12);
  from.weights_only = true;
  from.overrides = {"train.max_hours=1e-9"};
  EXPECT_EQ(go(from).step, 1);
  // The same command goes on with what it began; another beginning is refused.
  EXPECT_EQ(go(from).step, 2);
  from.from = TinyRun::checkpoint_of(elsewhere(), 6);
  const auto line = refused_request(from, ExitCode::refused);
  EXPECT_NE(line.find("--from names another beginning"), std::string::npos) << line;
  EXPECT_EQ(start({"train.max_hours=1e-9"}).step, 3);
  // With everything: steps and moments go on, in a new folder, and the newest of a run's folder is found.
  TrainRequest whole = request({"train.steps=12"}, elsewhere("whole"));
  whole.from = TinyRun::checkpoint_of(elsewhere(), 6);
  EXPECT_EQ(go(whole).step, 12);
  expect_same_state(TinyRun::checkpoint_of(elsewhere(), 12), TinyRun::checkpoint_of(elsewhere("whole"), 12));
  EXPECT_EQ(steps_in(elsewhere("whole") / "metrics.jsonl").size(), 6U);
  whole = request({}, elsewhere("third"));
  whole.from = elsewhere();
  whole.weights_only = true;
  EXPECT_EQ(go(whole).step, 24);
  whole.from.clear();
  EXPECT_NE(refused_request(whole, ExitCode::usage).find("--from"), std::string::npos);
  write_weights_only(Checkpoint::open(TinyRun::checkpoint_of(elsewhere(), 12)), tiny_.folder() / "w.safetensors");
  whole = request({}, elsewhere("fourth"));
  whole.from = tiny_.folder() / "w.safetensors";
  EXPECT_NE(refused_request(whole, ExitCode::usage).find("--weights-only"), std::string::npos);
  whole.weights_only = true;
  EXPECT_EQ(go(whole).step, 24);
}

TEST_F(SettingsTest, AShortRunNeedNotFinishItsWarmUp) {
  start({"train.warmup_steps=300", "train.steps=3"});
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NEAR(lines[2]["lr"].get<double>(), 3e-3 * 2 / 300, 1e-15);
  EXPECT_NE(log_of(tiny_.run()).find("never reaches its peak"), std::string::npos);
}

TEST_F(SettingsTest, TheBudgetEndsTheRunWithACheckpoint) {
  const TrainResult r = start({"cost.price_per_hour=5", "cost.budget=1e-12"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.step, 1);
  EXPECT_FALSE(r.finished);
  EXPECT_EQ(newest(tiny_.run()), 1);
  EXPECT_NE(log_of(tiny_.run()).find("cost.budget"), std::string::npos);
}

TEST_F(SettingsTest, TheLogLineIsTheContracts) {
  start({"cost.price_per_hour=5", "log.every=1"});
  const std::regex line(
      R"(^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| step +\d+/24 \| loss \d+\.\d{4} \| gnorm \d+\.\d\d \| lr \d\.\d\de[+-]\d\d)"
      R"( \| \d[\d,]* tokens \| \d[\d,]* tok/s \| mfu \d+\.\d% \| mem \d[\d,]* MiB \| eta [^|]+ \| \$\d+ so far( \|.*)?$)");
  int64_t found = 0;
  for (const auto& text : lines_of(tiny_.run() / "log.txt")) {
    if (text.find("| step ") == std::string::npos) continue;
    EXPECT_TRUE(std::regex_match(text, line)) << text;
    EXPECT_NE(text.find(fmt::format("step {:>6}/24 |", ++found)), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("| lr {:.2e} |", closed_form(found - 1, 24))), std::string::npos) << text;
  }
  EXPECT_EQ(found, 24);
  const StepMetrics article{.step = 800,
                            .total = 5744,
                            .loss = 4.0474,
                            .gradient_norm = 0.63,
                            .lr = 5.89e-4,
                            .tokens = 417'792'000,
                            .tokens_per_second = 5440,
                            .mfu = 0.034,
                            .memory_bytes = int64_t{45'013} << 20,
                            .eta_seconds = 475'200,
                            .price_per_hour = 5,
                            .hours_so_far = 21.4,
                            .batch = {},
                            .watched = {}};
  EXPECT_EQ(log_line(article).substr(19),
            " | step    800/5744 | loss 4.0474 | gnorm 0.63 | lr 5.89e-04 | 0.4B tokens | 5,440 tok/s | mfu 3.4% | mem "
            "45,013 MiB | eta 5d 12h | $107 so far | data wait 0.0%");
}

TEST_F(SettingsTest, TheFirstLossOfFreshWeightsIsWhatTheyImply) {
  start({"train.max_hours=1e-9"});
  const double vocab = static_cast<double>(Tokenizer::load(tiny_.tokenizer()).n_ordinary());
  const double expected = std::log(vocab) + 16 * 0.02 * 0.02 / 2;
  EXPECT_NEAR(steps_in(tiny_.run() / "metrics.jsonl")[0]["loss"].get<double>(), expected, 0.02 * expected);
}

TEST_F(SettingsTest, PromptsAndHeldOutTextThatCannotWorkAreRefusedBeforehand) {
  auto line = refused({"log.prompts=[\"The\"]", "log.sample_tokens=100"}, ExitCode::usage);
  EXPECT_NE(line.find("log.prompts has 'The'"), std::string::npos) << line;
  write_text(tiny_.folder() / "held.txt", "a\n");
  line = refused({"data.validation_documents=0", "data.validation_source=" + (tiny_.folder() / "held.txt").string()},
                 ExitCode::usage);
  EXPECT_NE(line.find("held-out"), std::string::npos) << line;
  EXPECT_FALSE(fs::exists(tiny_.run()));
}

}  // namespace
}  // namespace mythos::testing
