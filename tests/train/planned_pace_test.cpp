// Whether a run keeps the pace it was planned with: said once, with the likely cause.
#include "train/planned_pace.h"

#include "train_testing.h"

namespace mythos::testing {
namespace {

PlannedPace planned(double rate, int64_t micro_batch = 3, Recompute recompute = Recompute::none) {
  return {rate, micro_batch, recompute, "measured before the run"};
}
PaceWatch watch(const PlannedPace& plan) { return {plan, 3, Recompute::none, 3}; }
bool holds(const std::optional<std::string>& text, const std::string& part) {
  return text && text->find(part) != std::string::npos;
}
// A window of 10 steps at a rate, with a share of waiting.
std::optional<std::string> window(PaceWatch& w, double rate, double waited = 0) { return w.add(10, rate, waited); }

TEST(Pace, WithinTheToleranceNothingIsSaid) {
  PaceWatch w = watch(planned(100));
  for (const double rate : {86.0, 114.0, 90.0, 99.0}) EXPECT_FALSE(window(w, rate)) << rate;
}

TEST(Pace, OneSlowWindowIsNothingTwoAreSaidOnce) {
  PaceWatch w = watch(planned(100));
  EXPECT_FALSE(window(w, 60));
  EXPECT_FALSE(window(w, 100));
  EXPECT_FALSE(window(w, 60));
  const auto said = window(w, 60);
  EXPECT_TRUE(holds(said, "60.0 tokens/s, 40% slower than planned (100 tokens/s, measured before the run)"))
      << said.value_or("");
  EXPECT_TRUE(holds(said, "throttles"));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(window(w, 60)) << "once";
}

TEST(Pace, TheCauseIsNamed) {
  PaceWatch waiting = watch(planned(100));
  window(waiting, 60, 0.35);
  EXPECT_TRUE(holds(window(waiting, 60, 0.35), "35% of the time goes into waiting for data"));
  PaceWatch smaller = watch(planned(100, 8));
  window(smaller, 70);
  EXPECT_TRUE(holds(window(smaller, 70), "micro_batch is 3 now, and was 8"));
  PaceWatch again(planned(100), 3, Recompute::loop, 3);
  window(again, 80);
  EXPECT_TRUE(holds(window(again, 80), "loops are recomputed now"));
  PaceWatch faster = watch(planned(100));
  window(faster, 130);
  EXPECT_TRUE(holds(window(faster, 130), "30% faster"));
}

TEST(Pace, WithoutAPlanTheFirstStepsAreIt) {
  PaceWatch w = watch({});
  EXPECT_FALSE(w.add(1, 10, 0)) << "too short to be one";
  EXPECT_EQ(w.planned().tokens_per_second, 0);
  EXPECT_FALSE(w.add(2, 40, 0));
  EXPECT_DOUBLE_EQ(w.planned().tokens_per_second, 20) << "1 step at 10, 2 at 40: 3 / (1/10 + 2/40)";
  EXPECT_EQ(w.planned().micro_batch, 3);
}

TEST(Pace, ItGoesIntoACheckpointAndBack) {
  const PlannedPace p = planned(12.5, 6, Recompute::loop);
  const auto back = planned_pace_from(to_json(p));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->tokens_per_second, 12.5);
  EXPECT_EQ(back->micro_batch, 6);
  EXPECT_EQ(back->recompute, Recompute::loop);
  EXPECT_EQ(back->source, p.source);
  for (const char* bad : {"null", "3", "{}", R"({"tokens_per_s":"x","micro_batch":1,"recompute":true,"source":""})",
                          R"({"tokens_per_s":0,"micro_batch":1,"recompute":true,"source":""})"}) {
    EXPECT_FALSE(planned_pace_from(Json::parse(bad))) << bad;
  }
}

class AutoBatchTest : public TrainTest {};

TEST_F(AutoBatchTest, AutoMeasuresSaysWhyAndIsKept) {
  const std::vector<std::string> overrides = {"train.micro_batch=auto", "log.every=1"};
  auto first = overrides;
  first.emplace_back("train.max_hours=1e-9");
  EXPECT_EQ(start(first).step, 1);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("measuring micro_batch 1"), std::string::npos) << text;
  const size_t why = text.find("is the smallest within 3% of the fastest");
  ASSERT_NE(why, std::string::npos) << text;
  const Checkpoint c = *CheckpointStore(tiny_.run() / "checkpoints", 1).newest();
  const int64_t chosen = c.meta.state["micro_batch"];
  EXPECT_GE(chosen, 1);
  EXPECT_LE(chosen, 4) << "4 rows of 16 are the global batch";
  EXPECT_EQ(c.meta.state["plan"]["micro_batch"], chosen);
  EXPECT_EQ(start(overrides).step, 24);
  EXPECT_NE(log_of(tiny_.run()).find(fmt::format("micro_batch {} is what this run began with", chosen)),
            std::string::npos);
}

}  // namespace
}  // namespace mythos::testing
