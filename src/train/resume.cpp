#include "train/resume.h"

#include "base/log.h"
#include "base/machine.h"
#include "checkpoint/model_state.h"
#include "infer/checkpoint_io.h"
#include "step/gemm_rate.h"
#include "train/run_parts.h"

#include <cmath>

#ifndef MYTHOS_VERSION
#define MYTHOS_VERSION "unknown"
#endif

namespace mythos {
namespace {

double norm(const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const double n = at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
    sum += n * n;
  }
  return std::sqrt(sum);
}

}  // namespace

StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer) {
  return {norm(parameters.named_values()), norm(optimizer.named_first_moments()),
          norm(optimizer.named_second_moments())};
}

void begin_weights(const Run& run, const std::filesystem::path& from, Model& model) {
  if (from.empty()) {
    initialize(model.parameters(), run.config.model, static_cast<uint64_t>(run.config.train.seed));
  } else {
    load_weights(open_checkpoint(from), model);
  }
}

void load_training_state(const Checkpoint& checkpoint, Model& model, AdamW& optimizer) {
  load_weights(checkpoint, model);
  load_moments(checkpoint, optimizer);
  optimizer.set_steps(checkpoint.meta.state.value("optimizer_steps", checkpoint.meta.step));
}

void note_updates(const AdamW& optimizer, Json& state) {
  state["optimizer_steps"] = optimizer.steps();
  if (!optimizer.lags().empty()) state["optimizer_lags"] = lags_to_json(optimizer.lags());
}

CheckpointMeta checkpoint_meta(const Run& run) {
  CheckpointMeta meta;
  meta.model = run.config.model;
  meta.config = to_toml(without_secrets(run.config));
  meta.tokenizer = run.tokenizer->fingerprint();
  meta.seed = static_cast<uint64_t>(run.config.train.seed);
  meta.state = {{"threads", run.threads},
                {"micro_batch", run.batch.micro_batch},
                {"recompute", run.recompute == Recompute::loop ? 2 : 1}};
  if (!run.from.empty()) meta.state["from"] = run.from;
  meta.program = "mythos " MYTHOS_VERSION;
  meta.libtorch = libtorch_version();
  meta.host = host_name();
  meta.device = device_name(run.device);
  return meta;
}

void warn_of_other_threads(const Run& run, const CheckpointMeta& meta) {
  const int64_t threads = meta.state.value("threads", run.threads);
  if (threads == run.threads) return;
  log::warn(
      "this run began with {} threads and goes on with {}: sums are added in another order, so the last bits of the "
      "weights will differ from an undisturbed run's",
      threads, run.threads);
}

}  // namespace mythos
