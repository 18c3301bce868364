// Measuring on the device that is here: what a trial tells, and the search for a micro-batch.
#include "plan/measure.h"

#include "base/error.h"
#include "kernels/memory.h"
#include "plan/memory.h"

#include "../support/small_model.h"

#include <gtest/gtest.h>

namespace mythos {
namespace {

MeasureOptions options(AttentionType attention = AttentionType::mla) {
  MeasureOptions o;
  o.model = test::small_config(attention);
  o.model.dim = 64;
  o.model.vocab_size = 500;
  o.model.max_seq_len = 64;
  o.seq_len = 32;
  o.loops = {2};
  o.micro_steps = 2;
  return o;
}

SearchLimits limits(int64_t most) {
  return {.most_rows = most,
          .seconds = 60,
          .gain = 0.03,
          .grad_accum = [](int64_t n) { return std::max<int64_t>(1, 64 / n); },
          .recompute = [](int64_t) { return std::optional(Recompute::none); }};
}

TEST(Measure, ATrialTellsTimeMemoryAndLoops) {
  keep_tensor_memory();
  Measurer measurer(options());
  const Trial t = measurer.measure(4, Recompute::none);
  EXPECT_FALSE(t.out_of_memory);
  EXPECT_GT(t.micro_seconds, 0);
  EXPECT_GT(t.update_seconds, 0);
  EXPECT_GE(t.deviation, 0);
  EXPECT_GE(t.loops_run, 1);
  EXPECT_LE(t.loops_run, 2);
  EXPECT_DOUBLE_EQ(t.step_seconds(10), 10 * t.micro_seconds + t.update_seconds);
  EXPECT_DOUBLE_EQ(t.tokens_per_second(32, 10), 4 * 32 * 10 / t.step_seconds(10));
  const Trial larger = measurer.measure(16, Recompute::none);
  EXPECT_GT(larger.peak_bytes, t.peak_bytes);
  const MemoryPlan plan = plan_memory(measurer.options().model, 16, 32, 2, Recompute::none);
  EXPECT_GT(static_cast<double>(larger.peak_bytes), 0.5 * static_cast<double>(plan.total() - plan.program));
  EXPECT_LT(static_cast<double>(larger.peak_bytes), 1.5 * static_cast<double>(plan.total() - plan.program));
}

TEST(Measure, RowsAreTakenWhileThereAreSome) {
  MeasureOptions o = options();
  int64_t given = 0;
  o.next_row = [&](std::span<int32_t> row) {
    EXPECT_EQ(row.size(), 33U);
    std::fill(row.begin(), row.end(), 7);
    return ++given <= 3;
  };
  Measurer measurer(std::move(o));
  EXPECT_GT(measurer.measure(2, Recompute::loop).micro_seconds, 0);
  EXPECT_EQ(given, 4) << "the fourth was not there, and none was asked for after it";
}

TEST(Measure, EveryNumberOfLoopsIsMeasured) {
  MeasureOptions o = options();
  o.loops = {1, 3};
  o.model.act_threshold = 1;  // no position halts so soon that a loop is left out
  Measurer measurer(std::move(o));
  EXPECT_NEAR(measurer.measure(2, Recompute::none).loops_run, 2, 0.51);
}

TEST(Measure, TheSearchEndsWhereMemoryOrTheGlobalBatchDoes) {
  Measurer measurer(options());
  const BatchSearch found = search_batch(measurer, limits(4));
  EXPECT_LE(found.trials.size(), 4U);
  EXPECT_GE(found.chosen.micro_batch, 1);
  EXPECT_LE(found.chosen.micro_batch, 4);
  EXPECT_NE(found.why.find(fmt::format("micro_batch {}", found.chosen.micro_batch)), std::string::npos) << found.why;

  SearchLimits small = limits(64);
  small.recompute = [](int64_t n) { return n <= 2 ? std::optional(Recompute::loop) : std::nullopt; };
  const BatchSearch two = search_batch(measurer, small);
  EXPECT_LE(two.chosen.micro_batch, 2);
  EXPECT_EQ(two.chosen.recompute, Recompute::loop);

  SearchLimits none = limits(64);
  none.recompute = [](int64_t) { return std::optional<Recompute>(); };
  try {
    search_batch(measurer, none);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), 3);
  }

  SearchLimits hurried = limits(64);
  hurried.seconds = 0;
  EXPECT_EQ(search_batch(measurer, hurried).trials.size(), 1U) << "the first is always made";
}

TEST(Measure, OutOfMemoryIsAnAnswerAndSmallerOnesAreTried) {
  MeasureOptions failing = options();
  int64_t size = 0;
  failing.say = [&](const std::string& what) { size = std::atoll(what.substr(what.find_last_of(' ') + 1).c_str()); };
  failing.next_row = [&](std::span<int32_t> row) {
    std::fill(row.begin(), row.end(), 1);
    if (size > 3) throw std::bad_alloc();
    return true;
  };
  Measurer full(failing);
  const BatchSearch fixed = try_batch(full, 8, limits(64));
  EXPECT_EQ(fixed.chosen.micro_batch, 3);
  EXPECT_EQ(fixed.trials.size(), 4U) << "8, 6, 4, 3";
  EXPECT_NE(fixed.why.find("8 ran out of memory"), std::string::npos) << fixed.why;
  const BatchSearch upwards = search_batch(full, limits(64));
  EXPECT_LE(upwards.chosen.micro_batch, 3);
}

}  // namespace
}  // namespace mythos
