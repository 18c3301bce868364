// How a run's settings are resolved, and how they compare with those it began with.
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "checkpoint/model_state.h"
#include "data/tokenizer_source.h"
#include "plan/run_plan.h"
#include "storage/storage.h"
#include "train/run_parts.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mythos {

namespace {

// Everything loaded before the config's batch is settled keeps what an earlier start decided.
int64_t earlier(const std::optional<Checkpoint>& checkpoint, const char* key) {
  if (!checkpoint || !checkpoint->meta.state.is_object()) return 0;
  const auto found = checkpoint->meta.state.find(key);
  return found != checkpoint->meta.state.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

}  // namespace

at::Device choose_device(const std::string& name, int64_t local) {
  const at::Device gpu(at::kCUDA, static_cast<at::DeviceIndex>(local));
  if (name == "cuda") {
    if (!at::hasCUDA()) {
      throw usage_error("train.device is \"cuda\", and this build or machine has no CUDA device",
                        "use --set train.device=cpu");
    }
    return gpu;
  }
  return name == "auto" && at::hasCUDA() ? gpu : at::Device(at::kCPU);
}

at::ScalarType choose_dtype(const std::string& name, at::Device device) {
  if (name == "float64") {
    throw usage_error("train.dtype is \"float64\", and checkpoints hold fp32: such a run could not be resumed exactly",
                      "use float32, or bfloat16");
  }
  if (name == "bfloat16") return at::kBFloat16;
  // bf16 matrix multiplies are several times slower than fp32 ones on most CPUs.
  return name == "auto" && !device.is_cpu() ? at::kBFloat16 : at::kFloat;
}

DataOptions data_options(const RunConfig& c) {
  DataOptions o;
  o.storage = std::make_shared<Storage>();
  o.storage->set_patience(c.data.retry_minutes * 60);
  o.sources = c.data.source;
  o.weights = c.data.weights;
  o.text_column = c.data.text_column;
  o.validation_documents = c.data.validation_documents;
  o.validation_sources = c.data.validation_source;
  o.document_separator = c.data.document_separator;
  o.lanes = c.data.lanes;
  o.seq_len = c.train.seq_len;
  o.vocab_size = c.model.vocab_size;
  o.epochs = c.data.epochs;
  o.seed = static_cast<uint64_t>(c.train.seed);
  o.shuffle = c.data.shuffle;
  o.on_bad_data = on_bad_data_from(c.data.on_bad_data);
  o.workers = static_cast<int>(c.data.workers);
  return o;
}

Tokenizer open_tokenizer(RunConfig& config, DataOptions& data) {
  Tokenizer tokenizer = load_tokenizer(config.tokenizer.path, *data.storage);
  config.resolve_vocab(tokenizer.n_ordinary());
  data.vocab_size = config.model.vocab_size;
  data.decode = [t = tokenizer](std::span<const int32_t> ids) { return t.decode(ids); };
  return tokenizer;
}

RunConfig without_secrets(const RunConfig& config) {
  RunConfig shown = config;
  for (std::string& source : shown.data.source) source = shown_source(source);
  for (std::string& source : shown.data.validation_source) source = shown_source(source);
  shown.tokenizer.path = shown_source(shown.tokenizer.path);
  return shown;
}

Schedule schedule_of(const TrainSection& t, int64_t steps) {
  const ScheduleKind kind = t.schedule == "linear"     ? ScheduleKind::linear
                            : t.schedule == "constant" ? ScheduleKind::constant
                                                       : ScheduleKind::cosine;
  return {kind, t.lr, t.lr * t.min_lr_ratio, t.warmup_steps, steps};
}

namespace {

// Not so long that a start feels like hanging; a real step of a large model on the CPU takes more.
constexpr double search_seconds = 30;

BatchChoice search_for_batch(const Run& run, int64_t available, int64_t element) {
  const auto& train = run.config.train;
  const auto recompute = [&](int64_t n) { return recompute_for(run.config, n, element, available); };
  const Recompute otherwise = train.recompute == "none" ? Recompute::none : Recompute::loop;
  // What does not fit is refused, or forced, with the rest.
  if (!recompute(1)) return {.micro_batch = 1, .recompute = otherwise};
  MeasureOptions options;
  options.model = run.config.model;
  options.device = run.device;
  options.compute = run.compute;
  options.seq_len = train.seq_len;
  options.loops = run.loops;
  options.seed = static_cast<uint64_t>(train.seed);
  options.say = [](const std::string& what) {
    if (stop_requested()) throw Stopped(fmt::format("stopped by signal {} before the run began", stop_signal()));
    log::info("{}", what);
  };
  const auto accum = [&](int64_t n) { return batch_plan(train, n, run.team->size()).grad_accum; };
  Measurer measurer(std::move(options));
  const BatchSearch found = search_batch(measurer, {.most_rows = most_rows(train),
                                                    .seconds = search_seconds,
                                                    .gain = 0.03,
                                                    .grad_accum = accum,
                                                    .recompute = recompute});
  const Trial& t = found.chosen;
  return {.micro_batch = t.micro_batch,
          .recompute = t.recompute,
          .why = found.why,
          .tokens_per_second = t.tokens_per_second(train.seq_len, accum(t.micro_batch))};
}

}  // namespace

BatchChoice choose_batch(const Run& run, int64_t available) {
  const auto& train = run.config.train;
  const int64_t loops = *std::max_element(run.loops.begin(), run.loops.end());
  const int64_t element = run.compute == at::kBFloat16 ? 2 : 4;
  const auto least = [&](int64_t micro_batch) {
    if (train.recompute == "none") return Recompute::none;
    if (train.recompute == "loop") return Recompute::loop;
    if (const int64_t before = earlier(run.checkpoint, "recompute"); before != 0) {
      return before == 2 ? Recompute::loop : Recompute::none;
    }
    return least_recompute(run.config.model, micro_batch, train.seq_len, loops, element, available);
  };
  if (train.micro_batch > 0) return {.micro_batch = train.micro_batch, .recompute = least(train.micro_batch)};
  if (const int64_t before = earlier(run.checkpoint, "micro_batch"); before > 0) {
    return {.micro_batch = before,
            .recompute = least(before),
            .why = fmt::format("micro_batch {} is what this run began with", before)};
  }
  return search_for_batch(run, available, element);
}

namespace {

// The next step's learning rate under the old settings and under the new ones.
void say_schedule_change(const Run& run, const RunConfig& before) {
  const auto at = [&](const TrainSection& train, int64_t micro_batch) {
    const int64_t steps = batch_plan(train, micro_batch, run.team->size()).steps;
    return std::pair(steps, schedule_of(train, steps).rate(run.first_step()));
  };
  const int64_t was = std::max<int64_t>(1, earlier(run.checkpoint, "micro_batch"));
  const auto [old_steps, old_rate] = at(before.train, was);
  const int64_t now = run.config.train.micro_batch > 0 ? run.config.train.micro_batch : was;
  const auto [new_steps, new_rate] = at(run.config.train, now);
  log::warn("learning rate of step {}: {:.6e} with the old settings ({} steps), {:.6e} with the new ({} steps)",
            run.first_step() + 1, old_rate, old_steps, new_rate, new_steps);
}

// Another program's file says nothing of data and schedule, and of the optimizer what changes its updates.
void compare_with_import(Run& run) {
  const std::string at = run.checkpoint->path().string();
  const RunConfig before = parse_config(run.checkpoint->meta.config, "the checkpoint's config", run.config.run.name);
  for (const auto& d : diff(before, without_secrets(run.config))) {
    if (d.key != "train.betas" && d.key != "train.eps" && d.key != "train.weight_decay") continue;
    log::warn("{} was trained with {} = {}, this run has {}", at, d.key, d.a, d.b);
  }
  run.data_from_start = true;
  log::info("{} comes from another program and does not say which data it has seen: the data begins at its start", at);
}

}  // namespace

void compare_with_checkpoint(Run& run, bool force) {
  const Checkpoint& checkpoint = *run.checkpoint;
  const auto wrong = differences(checkpoint.meta.model, run.config.model);
  if (!wrong.empty()) {
    throw usage_error(
        fmt::format("the checkpoint {} is of another model: {}", checkpoint.path().string(), fmt::join(wrong, "; ")),
        "train the configuration it was made with, or start anew with --fresh");
  }
  if (run.weights_only) return;
  if (is_imported(checkpoint.meta)) return compare_with_import(run);
  if (checkpoint.meta.tokenizer != run.tokenizer->fingerprint()) {
    throw usage_error(fmt::format("the checkpoint {} was trained with another tokenizer (fingerprint {}, not {})",
                                  checkpoint.path().string(), checkpoint.meta.tokenizer, run.tokenizer->fingerprint()),
                      "use that tokenizer, or start anew with --fresh");
  }
  const RunConfig before = parse_config(checkpoint.meta.config, "the checkpoint's config", run.config.run.name);
  std::vector<std::string> refused;
  std::vector<std::string> others;
  bool schedule_moves = false;
  for (const auto& d : diff(before, without_secrets(run.config))) {
    if (d.bearing == Bearing::model) continue;  // compared above, as it was resolved
    run.changed.push_back(fmt::format("{} was {}, now {}", d.key, d.a, d.b));
    if (d.key == "data.source") {
      // The same data may have moved, or been prepared: the position tells other data apart.
      log::info("note: {} was {}, now {}", d.key, d.a, d.b);
      continue;
    }
    const std::string text = fmt::format("{} was {}, now {}", d.key, d.a, d.b);
    if (d.bearing == Bearing::nothing) {
      others.push_back(text);
      continue;
    }
    schedule_moves = schedule_moves || d.bearing == Bearing::batch || d.bearing == Bearing::schedule;
    if (d.bearing == Bearing::batch) {
      log::info("note: {}: steps and learning rate follow the new batch", text);
    } else {
      refused.push_back(text);
      if (d.bearing == Bearing::data || d.key == "train.seq_len") run.data_from_start = true;
    }
  }
  if (!others.empty()) log::info("note: since step {}: {}", run.first_step(), fmt::join(others, "; "));
  if (schedule_moves && (refused.empty() || force)) say_schedule_change(run, before);
  if (refused.empty()) return;
  if (!force) {
    throw refusal(
        fmt::format("the run in {} began with other settings: {}", run.dir.string(), fmt::join(refused, "; ")),
        "put them back, start anew with --fresh, or go on with the new ones with --force");
  }
  for (const auto& text : refused) log::warn("going on although {}", text);
}

}  // namespace mythos
