// A training run before its first step: everything resolved, checked and said.
#pragma once

#include "base/lock.h"
#include "checkpoint/store.h"
#include "config/batch_plan.h"
#include "config/run_config.h"
#include "data/loader.h"
#include "dist/team.h"
#include "infer/checkpoint_io.h"
#include "model/flops.h"
#include "optim/schedule.h"
#include "plan/memory.h"
#include "train/notify.h"
#include "train/planned_pace.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

/// What `mythos train` was asked.
struct TrainRequest {
  std::filesystem::path config;
  std::vector<std::string> overrides;  ///< "section.key=VALUE"
  std::optional<int64_t> steps;        ///< the run's length, over the configuration's
  bool fresh = false;                  ///< set an existing run aside and begin anew
  bool force = false;                  ///< go on where a refusal could be overruled
  std::filesystem::path from;          ///< begin from this checkpoint (a file, or a run's newest)
  bool weights_only = false;           ///< take only its weights
};

/// Everything a run is made of. Created by prepare_run(), used by Trainer.
struct Run {
  std::shared_ptr<Team> team;  ///< never null after prepare_run
  RunConfig config;
  std::filesystem::path dir;
  /// Waits for its command when the run goes, after the locks are released: the command may start the run again.
  std::unique_ptr<Notifier> notifier;
  std::unique_ptr<FolderLock> lock, checkpoint_lock;  ///< the second where checkpoints lie outside `dir`
  std::optional<Tokenizer> tokenizer;
  DataOptions data;
  Sources sources;
  std::unique_ptr<RowLoader> loader;  ///< at the row where the run begins or goes on
  std::optional<CheckpointStore> store;
  at::Device device = at::kCPU;
  at::ScalarType compute = at::kFloat;
  int64_t threads = 1;
  BatchPlan batch;
  Recompute recompute = Recompute::none;
  std::string batch_why;  ///< where micro_batch is "auto": why it is what it is
  PlannedPace planned;    ///< what was measured before the run, or an earlier start's
  std::vector<int64_t> loops;
  FlopsPerToken flops;
  MemoryPlan memory;                     ///< predicted
  double gemm_rate = 0;                  ///< FLOP/s measured here on this model's shapes, of all ranks together
  std::optional<Checkpoint> checkpoint;  ///< what the run goes on from
  bool holds_checkpoints = false;        ///< checkpoint.dir did, when the run was looked at
  std::string moved_from;                ///< the place of `checkpoint`, if it is an earlier checkpoint.dir of this run
  bool saves_in_background = true;       ///< there is memory for a copy to write from
  std::string from;                      ///< where it began, if from another run's checkpoint
  bool weights_only = false;
  std::vector<std::string>
      changed;                   ///< "train.lr was 1, now 2": in what the configuration differs from the checkpoint's
  bool data_from_start = false;  ///< forced: the saved position does not fit the data
  bool finished = false;         ///< nothing is left to do
  /// Called with a step's number and gradients before its update: where a test causes a fault.
  std::function<void(int64_t, ParameterStore&)> before_update;

  [[nodiscard]] int64_t first_step() const { return checkpoint && !weights_only ? checkpoint->meta.step : 0; }
  [[nodiscard]] Schedule schedule() const;
  /// The held-out documents, read when they are first needed: a run that goes on reads nothing before its place.
  [[nodiscard]] const std::vector<std::string>& held_out();
  /// How many there are, without reading them; -1: all of a source of their own.
  [[nodiscard]] int64_t n_held_out() const;

 private:
  std::optional<std::vector<std::string>> held_out_;
};

/// Whether the configuration, as things are here, means GPUs.
bool trains_on_gpu(const TrainRequest& request);

/// Reads the configuration, the tokenizer and the data's index, decides device, batch and memory, finds what to go on
/// from, and prints all of it. Throws Error: usage (2) for what cannot be, refusal (3) for what would end badly and is
/// not forced. Only once all of that is settled is a folder created, or with `fresh` set aside; of a
/// run to go on with, damaged checkpoints are renamed and those that keep_last no longer keeps removed before.
/// With several ranks all call this: the first decides, locks and writes, the others follow, and what fails on one is
/// thrown on all.
Run prepare_run(const TrainRequest& request, const std::shared_ptr<Team>& team = std::make_shared<Team>());

}  // namespace mythos
