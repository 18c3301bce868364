// A run that began in Python and goes on here.
#include "checkpoint/export.h"
#include "train_testing.h"

namespace mythos {
namespace {

using namespace testing;

class FromPt : public TrainTest {};

TEST_F(FromPt, ARunGoesOnWithWeightsMomentsAndStep) {
  start({"train.steps=24", "run.dir=" + elsewhere("first").string()});
  const fs::path there = TinyRun::checkpoint_of(elsewhere("first"), 12);
  ASSERT_TRUE(fs::exists(there));
  const ModelState state = state_of(Checkpoint::open(there));
  PtOptimizer optimizer;
  export_pt(state, optimizer, elsewhere("step_12.pt"));

  TrainRequest r = request();
  r.from = elsewhere("step_12.pt");
  const TrainResult result = go(r);
  EXPECT_EQ(result.exit_code, 0);
  const auto lines = steps_in(tiny_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 12U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], 13 + static_cast<int64_t>(i));
    EXPECT_EQ(lines[i]["tokens"], (13 + static_cast<int64_t>(i)) * 64);
    EXPECT_NEAR(lines[i]["lr"].get<double>(), closed_form(12 + static_cast<int64_t>(i), 24), 1e-14);
  }
  const std::string log = log_of(tiny_.run());
  EXPECT_NE(log.find("the data begins at its start"), std::string::npos);
  EXPECT_EQ(log.find("was trained with"), std::string::npos);
  const Checkpoint last = Checkpoint::open(tiny_.checkpoint(24));
  EXPECT_EQ(last.meta.state["optimizer_steps"], 24);
  EXPECT_FALSE(is_imported(last.meta));

  // The first rows of the data are those of step 1.
  const auto first = steps_in(elsewhere("first") / "metrics.jsonl");
  EXPECT_EQ(lines[0]["batch"], first[0]["batch"]);
}

TEST_F(FromPt, OtherSettingsOfTheOptimizerAreWarnedOf) {
  start({"train.steps=6", "run.dir=" + elsewhere("first").string()});
  ModelState state = state_of(Checkpoint::open(TinyRun::checkpoint_of(elsewhere("first"), 6)));
  PtOptimizer optimizer;
  optimizer.weight_decay = 0.25;
  export_pt(state, optimizer, elsewhere("x.pt"));
  TrainRequest r = request();
  r.from = elsewhere("x.pt");
  go(r);
  EXPECT_NE(log_of(tiny_.run()).find("train.weight_decay = 0.25"), std::string::npos) << log_of(tiny_.run());
}

TEST_F(FromPt, LagsAreKeptWhenTheRunStopsAndGoesOn) {
  start({"train.steps=6", "run.dir=" + elsewhere("first").string()});
  ModelState state = state_of(Checkpoint::open(TinyRun::checkpoint_of(elsewhere("first"), 6)));
  const size_t n = parameter_specs(state.meta.model).size();
  std::vector<int64_t> lags(n, 0);
  lags[3] = 4;
  lags[n - 1] = 6;  // never updated: without a state in the file
  state.meta.state["optimizer_lags"] = lags_to_json(lags);
  export_pt(state, {}, elsewhere("x.pt"));
  TrainRequest r = request();
  r.from = elsewhere("x.pt");
  go(r);
  TrainRequest in_two = request({}, elsewhere("two"));
  in_two.from = r.from;
  in_two.overrides.push_back("checkpoint.every=12");
  go(in_two);
  fs::remove(TinyRun::checkpoint_of(elsewhere("two"), 24));
  go(in_two);
  expect_same_state(tiny_.checkpoint(24), TinyRun::checkpoint_of(elsewhere("two"), 24));
  EXPECT_EQ(Checkpoint::open(tiny_.checkpoint(24)).meta.state["optimizer_lags"], lags_to_json(lags));
}

TEST_F(FromPt, AnotherVocabularyIsRefused) {
  TrainRequest r = request();
  r.from = MYTHOS_TEST_DIR "/golden/mla_step_0000600.pt";
  const std::string line = error_of(r, ExitCode::usage);
  EXPECT_NE(line.find("another model"), std::string::npos) << line;
  EXPECT_NE(line.find("vocab_size is 97 there, 320 here"), std::string::npos) << line;
}

}  // namespace
}  // namespace mythos
