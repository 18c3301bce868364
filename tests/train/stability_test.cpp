// Losses and gradients that are not finite, losses that stand out, and checkpoints on demand.
#include "train/stability.h"

#include "train_testing.h"

#include <set>

namespace mythos::testing {
namespace {

TEST(StabilityRules, LeavesOutGoesBackAndGivesUp) {
  Stability s(3, 2);
  EXPECT_EQ(s.not_finite(), Verdict::skip);
  EXPECT_EQ(s.not_finite(), Verdict::skip);
  s.finite(1.0);  // ends the row
  EXPECT_EQ(s.not_finite(), Verdict::skip);
  EXPECT_EQ(s.not_finite(), Verdict::skip);
  EXPECT_EQ(s.not_finite(), Verdict::roll_back);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(s.not_finite(), Verdict::skip);
  EXPECT_EQ(s.not_finite(), Verdict::roll_back);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(s.not_finite(), Verdict::skip);
  EXPECT_EQ(s.not_finite(), Verdict::give_up);
  EXPECT_EQ(s.skipped(), 11);
  EXPECT_EQ(s.rollbacks(), 2);
}

TEST(StabilityRules, ALossStandsOutAgainstItsOwnNoise) {
  Stability s(5, 3);
  Random random(3);
  const auto noise = [&] { return 0.05 * (static_cast<double>(random.below(2001)) / 1000 - 1); };
  double level = 10;
  for (int i = 0; i < 300; ++i) {  // a falling curve has none
    level = 3 + 7 * std::exp(-i / 60.0);
    EXPECT_FALSE(s.finite(level + noise())) << i;
  }
  const auto usual = s.finite(level + 2);
  ASSERT_TRUE(usual);
  EXPECT_NEAR(*usual, level, 0.3);
  EXPECT_FALSE(s.finite(level + noise()));  // one that stood out is soon forgotten
  int warned = 0;
  for (int i = 0; i < 400; ++i) warned += s.finite(level + 2 + noise()) ? 1 : 0;
  EXPECT_LT(warned, 20);  // a level that stays is the new average
  EXPECT_FALSE(s.finite(level + 2));
}

// M3
TEST(StabilityRules, ExpertsThatCollapseAreToldOnce) {
  const auto spread_over = [](int busy, int experts) {
    ExpertLoad load;
    for (int e = 0; e < experts; ++e) load.share.push_back(e < busy ? 1.0 / busy : 0);
    return load;
  };
  Stability s(5, 3);
  EXPECT_FALSE(s.collapsed(spread_over(8, 8), 2));
  EXPECT_FALSE(s.collapsed(spread_over(4, 8), 2));
  EXPECT_TRUE(s.collapsed(spread_over(2, 8), 2));
  EXPECT_FALSE(s.collapsed(spread_over(2, 8), 2));
  EXPECT_FALSE(s.collapsed(spread_over(4, 8), 2));
  EXPECT_TRUE(s.collapsed(spread_over(2, 8), 2));
  Stability all(5, 3);
  EXPECT_FALSE(all.collapsed(spread_over(2, 2), 2)) << "every token goes to every expert";
  EXPECT_FALSE(all.collapsed({}, 2)) << "nothing was seen";
}

class StabilityTest : public TrainTest {
 protected:
  // A run whose gradients are spoilt at these attempts, counted from 1 whether they succeed or not.
  TrainResult spoilt(const std::function<bool(int)>& at, std::vector<std::string> overrides) {
    mythos::Run run = prepare_run(request(std::move(overrides)));
    int attempt = 0;
    run.before_update = [&](int64_t, ParameterStore& parameters) {
      if (at(++attempt)) parameters.gradients(1).view({-1})[5] = std::numeric_limits<float>::quiet_NaN();
    };
    const TrainResult result = train(run);
    log::set_file("");
    return result;
  }
  std::vector<Json> lines(bool skipped) const {
    std::vector<Json> found;
    for (const auto& text : lines_of(tiny_.run() / "metrics.jsonl")) {
      const Json line = Json::parse(text);
      if (line.contains("loss") && line.value("skipped", false) == skipped) found.push_back(line);
    }
    return found;
  }
};

// R6
TEST_F(StabilityTest, AStepThatIsNotFiniteIsLeftOutAndItsDataPassedOver) {
  const TrainResult r = spoilt([](int attempt) { return attempt == 3 || attempt == 6; }, {"train.steps=8"});
  EXPECT_EQ(r.step, 8);
  EXPECT_TRUE(r.finished);
  const auto skipped = lines(true);
  ASSERT_EQ(skipped.size(), 2U);
  EXPECT_EQ(skipped[0]["step"], 3);
  EXPECT_EQ(skipped[0]["grad_norm"], "nan");
  EXPECT_EQ(skipped[1]["step"], 5);
  const auto done = lines(false);
  ASSERT_EQ(done.size(), 8U);
  for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i]["step"], i + 1);
  const Checkpoint c = Checkpoint::open(tiny_.checkpoint(8));
  EXPECT_EQ(c.meta.state["skipped"], 2);
  EXPECT_EQ(c.meta.data["rows"], 10 * 4);  // ten batches of four rows
  EXPECT_EQ(c.meta.tokens, 8 * 64);        // those that were trained on
}

TEST_F(StabilityTest, TooManyInARowGoBackToTheLastCheckpointPastTheData) {
  const std::vector<std::string> o = {"train.steps=10", "checkpoint.every=4", "train.skip_limit=3"};
  const TrainResult r = spoilt([](int attempt) { return attempt >= 7 && attempt <= 9; }, o);
  EXPECT_EQ(r.step, 10);
  const auto done = lines(false);
  ASSERT_EQ(done.size(), 10U);  // what was done after the checkpoint does not count twice
  std::set<std::string> batches;
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i]["step"], i + 1);
    batches.insert(done[i]["batch"]);
  }
  EXPECT_EQ(batches.size(), 10U);
  const std::string text = log_of(tiny_.run());
  EXPECT_NE(text.find("going back to step 4"), std::string::npos) << text;
  EXPECT_NE(text.find("the first gradient that is not is"), std::string::npos) << text;
  const Checkpoint c = Checkpoint::open(tiny_.checkpoint(10));
  EXPECT_EQ(c.meta.state["skipped"], 3);
  EXPECT_EQ(c.meta.state["rollbacks"], 1);
  EXPECT_EQ(c.meta.tokens, 10 * 64);
}

TEST_F(StabilityTest, WithoutACheckpointItGoesBackToTheBeginning) {
  const TrainResult r = spoilt([](int attempt) { return attempt == 3 || attempt == 4; },
                               {"train.steps=5", "checkpoint.every=1000", "train.skip_limit=2"});
  EXPECT_EQ(r.step, 5);
  EXPECT_EQ(lines(false).size(), 5U);
  EXPECT_NE(log_of(tiny_.run()).find("going back to step 0 (the beginning)"), std::string::npos);
}

TEST_F(StabilityTest, AfterTheLastTimeTheRunStopsAndSaysWhere) {
  try {
    spoilt([](int attempt) { return attempt > 6; },
           {"train.steps=20", "checkpoint.every=4", "train.skip_limit=2", "train.rollback_limit=3"});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::failed);
    const std::string what = e.what();
    EXPECT_NE(what.find("after going back 3 times"), std::string::npos) << what;
    EXPECT_NE(what.find("the first gradient that is not is"), std::string::npos) << what;
    EXPECT_NE(what.find("not finite)"), std::string::npos) << what;
    EXPECT_NE(what.find("is intact"), std::string::npos) << what;
  }
  log::set_file("");
  EXPECT_EQ(newest(tiny_.run()), 4);
  EXPECT_EQ(start({"train.steps=20", "checkpoint.every=4", "train.skip_limit=2"}).step, 20);  // and it goes on
}

TEST(FirstNotFinite, IsFoundWhereItIs) {
  ModelConfig config = preset("mythos_300m");
  config.vocab_size = 40;
  config.dim = 32;
  config.n_heads = 2;
  config.n_kv_heads = 1;
  config.kv_lora_rank = 8;
  config.q_lora_rank = 8;
  config.qk_rope_head_dim = 4;
  config.qk_nope_head_dim = 8;
  config.v_head_dim = 8;
  config.n_experts = 4;
  config.expert_dim = 16;
  config.max_seq_len = 16;
  Model model(config, at::kCPU, at::kFloat, at::kFloat, true);
  const at::Tensor ids = at::zeros({1, 4}, at::kLong);
  const auto found = [&](const std::string& name, double value) {
    initialize(model.parameters(), config, 1);
    for (const auto& t : model.parameters().named_values()) {
      if (t.name == name) at::Tensor(t.tensor).view({-1})[1].fill_(value);
    }
    return first_not_finite(model, ids, 2);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string gate = "coda.0.ffn.gate.weight";
  const std::string weight = found(gate, nan);
  EXPECT_NE(weight.find("weight that is not finite is " + gate), std::string::npos) << weight;
  EXPECT_NE(weight.find("[0, 1]"), std::string::npos) << weight;
  const std::string fine = found(gate, 0.5);
  EXPECT_NE(fine.find("overflowed"), std::string::npos) << fine;
  const std::string coda = found("coda.1.ffn_norm.weight", 3e38);
  EXPECT_NE(coda.find("after the coda"), std::string::npos) << coda;
}

// M3: a router without a direction sends everything to the first experts.
TEST_F(StabilityTest, ARouterThatSendsAllTokensToTheSameExpertsIsToldOf) {
  for (const bool collapse : {true, false}) {
    mythos::Run run = prepare_run(request({"train.steps=8", "log.every=2", "train.warmup_steps=0", "train.lr=1e-4",
                                           collapse ? "run.name=collapsed" : "run.name=sound"},
                                          elsewhere(collapse ? "collapsed" : "sound")));
    run.before_update = [&](int64_t, ParameterStore& parameters) {
      for (const auto& [name, tensor] : parameters.named_values()) {
        if (collapse && name == "recurrent.block.ffn.router.weight") at::Tensor(tensor).zero_();
      }
      for (const auto& [name, tensor] : parameters.named_gradients()) {
        if (collapse && name == "recurrent.block.ffn.router.weight") at::Tensor(tensor).zero_();
      }
    };
    train(run);
    log::set_file("");
    const std::string text = log_of(run.dir);
    const size_t first = text.find("nearly all tokens go to the same experts");
    EXPECT_EQ(first != std::string::npos, collapse) << text;
    if (!collapse) continue;
    EXPECT_NE(text.find("at step 2 nearly all"), std::string::npos) << text;
    EXPECT_EQ(text.find("nearly all tokens", first + 1), std::string::npos) << "more than once";
  }
}

// M1
TEST_F(StabilityTest, TheRoutersBiasIsSavedAndGoesOn) {
  const std::vector<std::string> o = {"train.router_bias_speed=0.01"};
  const auto bias_of = [](const fs::path& file) {
    const Checkpoint c = Checkpoint::open(file);
    const auto bytes = c.weights("recurrent.block.ffn.router_bias");
    std::vector<float> bias(bytes.size() / sizeof(float));
    std::memcpy(bias.data(), bytes.data(), bytes.size());
    return bias;
  };
  start({o[0], "train.steps=12"}, elsewhere());
  start({o[0], "train.steps=12", "train.max_hours=1e-9"});
  EXPECT_EQ(newest(tiny_.run()), 1);
  for (const float b : bias_of(tiny_.checkpoint(1))) EXPECT_TRUE(std::abs(b) < 0.0101F);
  start({o[0], "train.steps=12"});
  const auto bias = bias_of(tiny_.checkpoint(12));
  EXPECT_EQ(bias, bias_of(TinyRun::checkpoint_of(elsewhere(), 12)));
  EXPECT_GT(*std::max_element(bias.begin(), bias.end()), 0);
  EXPECT_LT(*std::min_element(bias.begin(), bias.end()), 0);
}

TEST_F(StabilityTest, ASignalAsksForACheckpointWhileTheRunGoesOn) {
  auto p = program({"train.steps=60", "checkpoint.every=1000"});
  ASSERT_TRUE(p->wait_until([&] { return lines_of(tiny_.run() / "metrics.jsonl").size() >= 3; })) << p->err();
  p->signal(SIGUSR1);
  ASSERT_TRUE(p->wait_until([&] { return newest(tiny_.run()) > 0; })) << p->err();
  const int64_t saved = newest(tiny_.run());
  EXPECT_LT(saved, 60);
  EXPECT_EQ(p->wait(), 0) << p->err();
  EXPECT_EQ(newest(tiny_.run()), 60);
  EXPECT_NE(log_of(tiny_.run()).find("asked for a checkpoint (SIGUSR1)"), std::string::npos);
  EXPECT_NO_THROW(Checkpoint::open(tiny_.checkpoint(saved)));
}

}  // namespace
}  // namespace mythos::testing
