// The measuring of steps: parts, matrix products, and that what is measured is a real step.
#include "step/speed.h"

#include "../base/scratch.h"
#include "../support/small_model.h"

#include "base/error.h"
#include "base/safetensors.h"
#include "model/flops.h"
#include "step/gemm_rate.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mythos {
namespace {

TEST(PartTimer, TimeBelongsToTheInnermostMark) {
  const at::Tensor a = at::ones({300, 300});
  PartTimer timer;
  at::mm(a, a);
  {
    const PartScope head(Part::head);
    at::mm(a, a);
    {
      const PartScope optimizer(Part::optimizer);
      at::mm(a, a);
    }
  }
  a.add(1);
  const PartTimes times = timer.times();
  for (const Part part : {Part::head, Part::optimizer, Part::projections, Part::elementwise}) {
    EXPECT_GT(times.seconds[static_cast<size_t>(part)], 0) << part_names[static_cast<size_t>(part)];
  }
  EXPECT_EQ(times.seconds[static_cast<size_t>(Part::experts)], 0);
  const double sum = std::accumulate(times.seconds.begin(), times.seconds.end(), 0.0);
  double by_operation = 0;
  for (const auto& [name, seconds] : times.operations) by_operation += seconds;
  EXPECT_NEAR(sum, by_operation, 1e-9);
  EXPECT_GT(times.operations.at("aten::mm"), 0);
  EXPECT_GE(times.operations.at("mythos.head"), 0);
}

TEST(PartTimer, OneAtATime) {
  {
    const PartTimer first;
    EXPECT_THROW(PartTimer(), c10::Error);
  }
  EXPECT_NO_THROW(PartTimer());
}

// The FLOPs of the shapes are the step's, but for attention's own and the small products (router, adapter, halting).
TEST(GemmShapes, HoldTheModelsFlops) {
  for (const char* name : {"mythos_300m", "mythos_3b"}) {
    const ModelConfig model = preset(name);
    const FlopsPerToken flops = flops_per_token(model, 2048, 8);
    double sum = 0;
    for (const auto& s : gemm_shapes(model, 2048, 8)) sum += s.flops;
    const double matrices = 3 * (flops.forward - flops.attention);
    EXPECT_LE(sum, matrices);
    EXPECT_GE(sum, 0.99 * matrices);
  }
}

TEST(GemmRate, MeasuresEveryShapeAndKeepsTheBest) {
  GemmRate rate(gemm_shapes(test::small_config(), 32, 2), at::kCPU, at::kFloat);
  rate.round(0.01);
  const double first = rate.best();
  EXPECT_GT(first, 0);
  EXPECT_DOUBLE_EQ(first, rate.last());
  for (const double r : rate.best_by_shape()) EXPECT_GT(r, 0);
  rate.round(0.01);
  EXPECT_GE(rate.best(), first);
  EXPECT_LE(rate.last(), rate.best());
}

TrainSpeedOptions small_options() {
  TrainSpeedOptions o;
  o.model = test::small_config();
  o.seq_len = 16;
  o.micro_batch = 2;
  o.steps = 2;
  return o;
}

TEST(TrainSpeed, MeasuresRealSteps) {
  const TrainSpeed s = measure_training(small_options(), [](const std::string&) {});
  EXPECT_EQ(s.step_seconds.size(), 2U);
  EXPECT_EQ(s.losses.size(), 4U);  // warm-up, two counted, one timed by part
  for (const double loss : s.losses)
    EXPECT_NEAR(loss, std::log(static_cast<double>(test::small_config().vocab_size)), 0.7);
  EXPECT_EQ(s.gemm_rates.size(), 3U);
  EXPECT_GT(s.fraction_of_limit(), 0);
  EXPECT_NEAR(s.fraction_of_limit(), s.tokens_per_second() * s.train_flops_per_token / s.gemm_flops_per_s, 1e-9);
  EXPECT_GE(s.loops_run, 1);
  EXPECT_LE(s.loops_run, test::small_config().max_loop_iters);
  EXPECT_GT(s.peak_resident_bytes, 0);
  for (const Part part :
       {Part::head, Part::attention, Part::experts, Part::projections, Part::elementwise, Part::optimizer}) {
    EXPECT_GT(s.parts.seconds[static_cast<size_t>(part)], 0) << part_names[static_cast<size_t>(part)];
  }
}

TEST(TrainSpeed, SameStepsHoweverTheBatchIsSplit) {
  TrainSpeedOptions o = small_options();
  const Scratch folder;
  o.batches = folder / "batches.safetensors";
  const at::Tensor ids = at::randint(o.model.vocab_size, {3, 2, 16}, at::kLong).contiguous();
  const auto bytes = [](const at::Tensor& t) {
    return std::span(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes());
  };
  const std::vector<int64_t> whole{3, 2, 16}, halves{6, 1, 16};
  write_safetensors(o.batches,
                    std::vector<TensorBytes>{{{"input_ids", DType::I64, whole}, bytes(ids)},
                                             {{"targets", DType::I64, whole}, bytes(ids)}},
                    {});
  const TrainSpeed once = measure_training(o, [](const std::string&) {});
  write_safetensors(o.batches,
                    std::vector<TensorBytes>{{{"input_ids", DType::I64, halves}, bytes(ids)},
                                             {{"targets", DType::I64, halves}, bytes(ids)}},
                    {});
  TrainSpeedOptions split = o;
  split.micro_batch = 1;
  split.grad_accum = 2;
  split.recompute = Recompute::loop;
  const TrainSpeed twice = measure_training(split, [](const std::string&) {});
  EXPECT_EQ(once.tokens_per_step, twice.tokens_per_step);
  ASSERT_EQ(once.losses.size(), twice.losses.size());
  for (size_t i = 0; i < once.losses.size(); ++i) EXPECT_NEAR(once.losses[i], twice.losses[i], 1e-4);
  EXPECT_THROW(measure_training(o, [](const std::string&) {}), Error);  // rows of another shape
}

}  // namespace
}  // namespace mythos
