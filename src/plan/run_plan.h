// A whole run before it is begun: batch, memory, speed, hours, money, disk, and what would change them most.
#pragma once

#include "base/json.h"
#include "config/batch_plan.h"
#include "config/run_config.h"
#include "model/flops.h"
#include "plan/by_gpus.h"
#include "plan/hardware.h"
#include "plan/measure.h"
#include "plan/memory.h"
#include "plan/quota.h"

#include <optional>
#include <string>
#include <vector>

namespace mythos {

/// What is planned, and what was measured for it. Nothing is opened or asked for.
struct PlanRequest {
  std::string title;
  RunConfig config;  ///< its vocabulary settled
  int64_t checkpoint_bytes = 0;
  int64_t snapshot_bytes = 0;  ///< the copy that checkpoints are written from, where one is held beside the run

  Catalogue catalogue;
  QuotaBook quotas;
  std::string gpu;       ///< empty: the instance's, or the device that is here
  std::string instance;  ///< empty: none
  std::string region = "us-east-1";
  bool spot = false;
  std::optional<double> mfu;    ///< instead of what the catalogue assumes
  std::optional<double> price;  ///< dollars an hour, over the configuration's and the instance's
  std::optional<double> budget, deadline_hours;
  bool compare = false;
  std::vector<int64_t> gpus;      ///< numbers of GPUs to go through; none: one process
  std::optional<double> network;  ///< bytes/s of a machine to others, over the catalogue's

  // The device that is here, where no GPU or instance is named.
  std::string device;   ///< its name
  int64_t element = 4;  ///< bytes of a compute value
  bool on_cpu = true;
  int64_t device_memory = 0;            ///< free
  double measured_peak = 0;             ///< FLOP/s of matrix products on it; 0: not measured
  std::optional<BatchSearch> measured;  ///< its trials
  int64_t measured_program = 0;         ///< what the process took beside its tensors; 0: not known
  std::optional<int64_t> disk_free;     ///< where checkpoints go; nothing: unknown
};

struct MemoryRow {
  int64_t micro_batch = 0;
  Recompute recompute = Recompute::none;
  int64_t bytes = 0;
  bool fits = false;
};

struct Pace {
  double tokens_per_second = 0, hours = 0, cost = 0;  ///< cost 0: no price
  double mfu = 0;
};

/// Something that would change the answer: `gain` is the part of the hours or the cost it would save.
struct Change {
  std::string text;
  double gain = 0;
};

/// A machine of the catalogue with this run on one of its GPUs.
struct Choice {
  Instance instance;
  double hours = 0, cost = 0, price = 0;
  bool fits = false;
};

struct RunPlan {
  std::string title, target;  ///< "L40S (g6e.8xlarge in us-east-1)", "AMD EPYC"
  ParametersByPart parameters;
  FlopsPerToken flops;
  BatchPlan batch;  ///< steps 0: the configuration names no length
  Recompute recompute = Recompute::none;
  MemoryPlan memory;             ///< predicted, at the chosen micro-batch
  int64_t memory_bytes = 0;      ///< as measured where it was, else predicted
  int64_t measured_tensors = 0;  ///< 0: not measured
  int64_t memory_limit = 0;
  bool fits = true;
  std::vector<MemoryRow> rows;
  int64_t cache_bytes = 0;  ///< of a whole row of positions while generating
  std::string batch_why;

  Pace expected, fast, slow;
  std::optional<Pace> reference;  ///< at the pace of the Python reference; for estimates
  bool measured = false;
  double peak = 0;
  std::string peak_source, speed_source;
  double price = 0;
  std::string price_source;

  int64_t checkpoint_bytes = 0, checkpoints_at_once = 0, disk_needed = 0;
  std::optional<int64_t> disk_free;
  double network_bytes = 0;  ///< estimated; 0: the data is here

  std::optional<QuotaAdvice> quota;
  QuotaUse use;
  std::vector<std::string> notes;
  std::vector<Change> changes;        ///< the greatest first
  std::vector<Choice> choices;        ///< with `compare`, the cheapest first
  std::vector<std::string> verdicts;  ///< on budget and deadline
  Json targets = Json::object();      ///< the same for programs
  std::optional<ByGpus> by_gpus;

  [[nodiscard]] double total_flops() const { return flops.train * static_cast<double>(batch.tokens()); }
};

/// Throws usage Error for unknown names and for a micro-batch that would pass the global batch, a refusal for a GPU
/// that cannot train.
RunPlan make_plan(const PlanRequest& request);

/// The GPU of the catalogue that is planned for: the one that is named, the instance's, or the device that is here.
/// Throws usage Error where that is none of the catalogue's.
const Gpu& planned_gpu(const PlanRequest& request);

/// The largest micro-batch that is predicted to fit without recomputing, or where none does, with it; 1 if nothing
/// fits. `most_rows` as in SearchLimits.
int64_t predicted_batch(const RunConfig& config, int64_t element, int64_t memory, int64_t most_rows);
/// The most rows that keep within the global batch; 8 where there is none.
int64_t most_rows(const TrainSection& train);
/// What train.recompute means for a micro-batch: "auto" is the least that fits. Nothing where that does not fit.
std::optional<Recompute> recompute_for(const RunConfig& config, int64_t micro_batch, int64_t element, int64_t memory);

/// "12h", "3d", "90min", "1.5h"; a number alone is hours. Throws usage Error naming `option`.
double hours_from(const std::string& text, const char* option);
/// "44%" or "0.44". Throws usage Error.
double fraction_from(const std::string& text, const char* option);

std::string plan_text(const RunPlan& plan);
Json to_json(const RunPlan& plan);

}  // namespace mythos
