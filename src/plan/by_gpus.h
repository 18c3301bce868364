// One run on many GPUs, by arithmetic alone: batch, memory, traffic and time for each number of GPUs, shared out as
// dist/sharding does it (docs/decisions/0025-ranks.md). Nothing is measured and no latency counted: at many small
// messages a real network is slower.
#pragma once

#include "base/json.h"
#include "config/batch_plan.h"
#include "config/run_config.h"
#include "plan/memory.h"

#include <optional>
#include <string>
#include <vector>

namespace mythos {

/// What GPUs send to each other, in one direction. Collectives are rings, as NCCL builds them: each leaves a machine
/// once, so that the ring's traffic is one rank's, whatever the number of ranks on the machine.
struct Interconnect {
  int64_t gpus_per_machine = 8;
  double link = 0;     ///< bytes/s of a GPU to the others of its machine; 0: not known
  double network = 0;  ///< bytes/s of a machine to others; 0: not known
};

struct ByGpusRequest {
  RunConfig config;
  std::vector<int64_t> counts;  ///< numbers of GPUs, as gpu_counts_from() gives them
  int64_t micro_batch = 1;      ///< on each GPU
  Recompute recompute = Recompute::none;
  int64_t element = 2;           ///< bytes of a compute value
  int64_t memory = 0;            ///< bytes of a GPU
  double tokens_per_second = 0;  ///< of one GPU by itself
  std::string speed_source;      ///< where that is from
  Interconnect interconnect;
  double price = 0;               ///< dollars an hour; 0: not known
  bool price_of_machine = false;  ///< of a machine, else of a GPU
};

/// Bytes on one GPU.
struct RankMemory {
  int64_t master = 0;           ///< fp32 weights kept here
  int64_t copies = 0;           ///< weights in compute type that are always there
  int64_t gradients = 0;        ///< that are always there: a part's where units are gathered, else all
  int64_t moments = 0;          ///< both
  int64_t gathered = 0;         ///< whole units in compute type: in use, and the next one on its way
  int64_t whole_gradients = 0;  ///< of whole units, until they are shared out
  int64_t activations = 0;
  int64_t loss_chunk = 0;  ///< as in MemoryPlan, like the next
  int64_t program = 0;

  /// What more GPUs do not make less.
  [[nodiscard]] int64_t of_every_gpu() const {
    return copies + gathered + whole_gradients + activations + loss_chunk + program;
  }
  [[nodiscard]] int64_t total() const { return master + gradients + moments + of_every_gpu(); }
};

struct GpuRow {
  int64_t gpus = 0, machines = 0;
  int64_t group = 1;           ///< ranks that share everything out
  std::string refused;         ///< why the program would not start like this; empty: it would
  BatchPlan batch;             ///< steps 0: no length is given, or it is less than a step
  bool needs_lanes = false;    ///< more ranks than data.lanes
  RankMemory memory;           ///< parts that are there at the same time, each at its most
  bool fits = true;            ///< into the GPU's memory
  std::string why_not;         ///< what does not fit
  double compute_seconds = 0;  ///< of a micro-step

  // Bytes that each rank sends.
  int64_t micro_step_gather_bytes = 0;
  int64_t step_gather_bytes = 0, step_reduce_bytes = 0;
  // Nothing where a figure that they need is not known.
  std::optional<double> micro_step_seconds;    ///< of one that is not the step's last
  std::optional<double> step_seconds;          ///< of all, and what comes after them
  std::optional<double> step_traffic_seconds;  ///< of the collectives, if nothing else were done
  std::optional<double> hidden;                ///< the fraction of these behind which something is computed
  std::optional<double> tokens_per_second;     ///< of all GPUs
  std::optional<double> efficiency;            ///< against so many times one GPU
  std::optional<double> hours, cost;           ///< cost: also nothing where no price is known
  std::vector<std::string> notes;              ///< what follows for the batch

  /// Whether less than 15% of a GPU's memory is left, as for fits() in plan/memory.h.
  [[nodiscard]] bool tight(int64_t memory_bytes) const {
    return static_cast<double>(memory.total()) > 0.85 * static_cast<double>(memory_bytes);
  }
  /// Whether a run like this is possible.
  [[nodiscard]] bool possible() const { return fits && refused.empty(); }
};

/// Where gathering units ends, and what would have to travel beyond.
struct DesignLimit {
  std::string unit;  ///< the largest
  int64_t unit_parameters = 0;
  int64_t gathered_bytes = 0;      ///< of it
  int64_t in_use_bytes = 0;        ///< with its gradients, while its backward pass runs
  int64_t largest_parameters = 0;  ///< of a unit that would fit, beside activations and logits
  bool fits = false;

  // Experts that stay where they are, on the largest number of GPUs asked for.
  int64_t gpus = 0;
  double token_bytes = 0;                       ///< that a token's vectors take over the network, both passes
  std::optional<double> token_rate;             ///< bytes/s that a GPU has for them
  std::optional<double> token_traffic_seconds;  ///< of one token on one GPU
  double token_compute_seconds = 0;             ///< the same
};

struct ByGpus {
  ByGpusRequest request;
  std::string gpu;  ///< its name
  std::vector<GpuRow> rows;
  DesignLimit limit;
  std::vector<std::string> missing;  ///< figures of the catalogue that are not known and were needed
};

/// "1,8,64" -> {1, 8, 64}: at most 32 numbers of 1 to 65,536. Throws usage Error naming `option`.
std::vector<int64_t> gpu_counts_from(const std::string& text, const char* option);

/// Throws usage Error for what batch_plan refuses for a number of ranks.
ByGpus plan_by_gpus(const std::string& gpu, const ByGpusRequest& request);

std::string by_gpus_text(const ByGpus& plan);
/// Sets `by_gpus`, `by_gpus_basis` and `by_gpus_limit`.
void add_to_json(Json& json, const ByGpus& plan);

}  // namespace mythos
