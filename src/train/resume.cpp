#include "train/resume.h"

#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/hasher.h"
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

StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer, Sharding* sharding) {
  if (sharding == nullptr) {
    return {norm(parameters.named_values()), norm(optimizer.named_first_moments()),
            norm(optimizer.named_second_moments())};
  }
  const auto norm_of_parts = [&](const auto& part) {
    double squares = 0;
    for (size_t u = 0; u < parameters.units(); ++u) {
      const double n = norm({{"", part(u)}});
      squares += n * n;
    }
    return std::sqrt(sharding->sum_over_parts(squares));
  };
  return {norm_of_parts([&](size_t u) { return parameters.values(u); }),
          norm_of_parts([&](size_t u) { return optimizer.first_moments()[u]; }),
          norm_of_parts([&](size_t u) { return optimizer.second_moments()[u]; })};
}

void BatchHash::add(std::span<const int32_t> row) {
  Hasher hasher;
  hasher.add(row.data(), row.size_bytes());
  rows_.push_back(static_cast<int64_t>(hasher.value()));
}

std::string BatchHash::text_of(const std::vector<int64_t>& rows) {
  Hasher hasher;
  hasher.add(rows.data(), rows.size() * sizeof(int64_t));
  return hash_text(hasher.value());
}

std::string BatchHash::text(Communicator& world) const {
  const auto all = all_numbers(world, rows_);
  std::vector<int64_t> rows;
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (const auto& of_rank : all) rows.push_back(of_rank[i]);
  }
  return text_of(rows);
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
                {"recompute", run.recompute == Recompute::loop ? 2 : 1},
                {"ranks", run.team->size()}};
  if (!run.from.empty()) meta.state["from"] = run.from;
  meta.program = "mythos " MYTHOS_VERSION;
  meta.libtorch = libtorch_version();
  meta.host = host_name();
  meta.device = device_name(run.device);
  return meta;
}

void say_going_on(const Run& run, int64_t tokens, const StateNorms& norms) {
  log::info("going on from {}: step {} of {}, {} tokens, next lr {:.2e}", run.checkpoint->path().string(),
            with_commas(run.first_step()), with_commas(run.batch.steps), with_commas(tokens),
            run.schedule().rate(run.first_step()));
  log::info("norms: weights {:.6g}, first moments {:.6g}, second moments {:.6g}", norms.weights, norms.first_moments,
            norms.second_moments);
}

void warn_of_other_threads(const Run& run, const CheckpointMeta& meta) {
  const int64_t ranks = meta.state.value("ranks", int64_t{1});
  if (ranks != run.team->size()) {
    log::info("note: this run went on {} rank{} and goes on with {}: sums are added in another order", ranks,
              ranks == 1 ? "" : "s", run.team->size());
  }
  const int64_t threads = meta.state.value("threads", run.threads);
  if (threads == run.threads) return;
  log::warn(
      "this run began with {} threads and goes on with {}: sums are added in another order, so the last bits of the "
      "weights will differ from an undisturbed run's",
      threads, run.threads);
}

}  // namespace mythos
