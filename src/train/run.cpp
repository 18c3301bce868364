#include "train/run.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "data/documents.h"
#include "plan/machine.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mythos {
namespace fs = std::filesystem;

Encoder Run::encoder() const {
  const Tokenizer t = *tokenizer;
  return {[t](std::string_view text, std::vector<int32_t>& out) { t.encode(text, out); }, t.fingerprint(),
          t.end_of_text(), t.n_ids()};
}

Schedule Run::schedule() const {
  const auto& t = config.train;
  const ScheduleKind kind = t.schedule == "linear"     ? ScheduleKind::linear
                            : t.schedule == "constant" ? ScheduleKind::constant
                                                       : ScheduleKind::cosine;
  return {kind, t.lr, t.lr * t.min_lr_ratio, t.warmup_steps, batch.steps};
}

fs::path set_run_aside(const fs::path& dir) {
  for (int n = 1;; ++n) {
    const fs::path target = dir.parent_path() / fmt::format("{}.{}", dir.filename().string(), n);
    std::error_code ec;
    if (fs::exists(target, ec)) continue;
    fs::rename(dir, target, ec);
    if (ec) throw failure(fmt::format("cannot set {} aside as {}: {}", dir.string(), target.string(), ec.message()));
    return target;
  }
}

namespace {

at::Device choose_device(const std::string& name) {
  if (name == "cuda") {
    if (!at::hasCUDA()) {
      throw usage_error("train.device is \"cuda\", and this build or machine has no CUDA device",
                        "use --set train.device=cpu");
    }
    return at::Device(at::kCUDA, 0);
  }
  return name == "auto" && at::hasCUDA() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
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
  if (c.data.source.size() != 1) {
    throw usage_error(
        fmt::format("data.source names {} sources, one file, folder or glob is supported", c.data.source.size()),
        "put the files into one folder");
  }
  if (c.data.validation_source.size() > 1) {
    throw usage_error("data.validation_source names several sources, one file, folder or glob is supported");
  }
  DataOptions o;
  o.source = c.data.source.front();
  o.text_column = c.data.text_column;
  o.validation_documents = c.data.validation_documents;
  o.validation_source = c.data.validation_source.empty() ? "" : c.data.validation_source.front();
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

// Everything loaded before the config's batch is settled keeps what an earlier start decided.
int64_t earlier(const std::optional<Checkpoint>& checkpoint, const char* key) {
  if (!checkpoint || !checkpoint->meta.state.is_object()) return 0;
  const auto found = checkpoint->meta.state.find(key);
  return found != checkpoint->meta.state.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

struct BatchChoice {
  int64_t micro_batch;
  Recompute recompute;
};

BatchChoice choose_batch(const Run& run, int64_t available) {
  const auto& train = run.config.train;
  const int64_t loops = *std::max_element(run.loops.begin(), run.loops.end());
  const auto fits = [&](int64_t micro_batch, Recompute recompute) {
    const int64_t element = run.compute == at::kBFloat16 ? 2 : 4;
    const auto plan = plan_memory(run.config.model, micro_batch, train.seq_len, loops, recompute, element);
    return static_cast<double>(plan.total()) <= 0.85 * static_cast<double>(available);
  };
  const auto recompute_for = [&](int64_t micro_batch) {
    if (train.recompute == "none") return Recompute::none;
    if (train.recompute == "loop") return Recompute::loop;
    if (const int64_t before = earlier(run.checkpoint, "recompute"); before != 0) {
      return before == 2 ? Recompute::loop : Recompute::none;
    }
    return fits(micro_batch, Recompute::none) ? Recompute::none : Recompute::loop;
  };
  if (train.micro_batch > 0) return {train.micro_batch, recompute_for(train.micro_batch)};
  if (const int64_t before = earlier(run.checkpoint, "micro_batch"); before > 0) return {before, recompute_for(before)};
  int64_t chosen = 1;
  for (const int64_t n : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    const bool useful = train.global_batch_tokens == 0 ? n <= 8 : n * train.seq_len <= train.global_batch_tokens;
    if (useful && fits(n, recompute_for(n))) chosen = n;
  }
  return {chosen, recompute_for(chosen)};
}

// What changed since the checkpoint was written, by what it has a bearing on.
void compare_with_checkpoint(Run& run, bool force) {
  const Checkpoint& checkpoint = *run.checkpoint;
  const auto wrong = differences(checkpoint.meta.model, run.config.model);
  if (!wrong.empty()) {
    throw usage_error(
        fmt::format("the checkpoint {} is of another model: {}", checkpoint.path().string(), fmt::join(wrong, "; ")),
        "train the configuration it was made with, or start anew with --fresh");
  }
  if (run.weights_only) return;
  if (checkpoint.meta.tokenizer != run.tokenizer->fingerprint()) {
    throw usage_error(fmt::format("the checkpoint {} was trained with another tokenizer (fingerprint {}, not {})",
                                  checkpoint.path().string(), checkpoint.meta.tokenizer, run.tokenizer->fingerprint()),
                      "use that tokenizer, or start anew with --fresh");
  }
  const RunConfig before = parse_config(checkpoint.meta.config, "the checkpoint's config", run.config.run.name);
  std::vector<std::string> refused;
  for (const auto& d : diff(before, run.config)) {
    if (d.bearing == Bearing::model) continue;  // compared above, as it was resolved
    const std::string text = fmt::format("{} was {}, now {}", d.key, d.a, d.b);
    if (d.bearing == Bearing::nothing) continue;
    if (d.bearing == Bearing::batch) {
      log::info("note: {}: steps and learning rate follow the new batch", text);
    } else {
      refused.push_back(text);
      if (d.bearing == Bearing::data) run.data_from_start = true;
    }
  }
  if (refused.empty()) return;
  if (!force) {
    throw refusal(
        fmt::format("the run in {} began with other settings: {}", run.dir.string(), fmt::join(refused, "; ")),
        "put them back, start anew with --fresh, or go on with the new ones with --force");
  }
  for (const auto& text : refused) log::warn("going on although {}", text);
}

std::string loops_text(const std::vector<int64_t>& loops) {
  return loops.size() == 1 ? fmt::format("{}", loops[0]) : fmt::format("one of {} each step", fmt::join(loops, ", "));
}

void say_what_was_decided(const Run& run, int64_t checkpoint_size, int64_t available) {
  const auto& c = run.config;
  const auto line = [](const char* what, const std::string& text) { log::info("{:<12} {}", what, text); };
  const int64_t parameters = parameter_count(c.model);
  const std::string dtype = run.compute == at::kBFloat16 ? "bf16 with fp32 master weights" : "fp32";
  line("run", fmt::format("{} in {}", c.run.name, run.dir.string()));
  line("device",
       fmt::format("{}, {} threads, {}, LibTorch {}", device_name(run.device), run.threads, dtype, libtorch_version()));
  line("matmul", fmt::format("{}FLOP/s measured on this model's own matrix shapes", si_text(run.gemm_rate)));
  line("model",
       fmt::format(
           "{} parameters: dim {}, {} heads ({}), {} + {} blocks around one looped {} times, {} experts ({} a token)",
           with_commas(parameters), c.model.dim, c.model.n_heads, to_string(c.model.attn_type), c.model.prelude_layers,
           c.model.coda_layers, loops_text(run.loops), c.model.n_experts, c.model.n_experts_per_tok));
  line("tokenizer", fmt::format("{}: {} tokens; model vocabulary {}", c.tokenizer.path,
                                with_commas(run.tokenizer->n_ids()), with_commas(c.model.vocab_size)));
  line("data", fmt::format("{}: {} documents, {} in {} file{}, {} lanes; {} documents held out", run.data.source,
                           with_commas(run.corpus->documents()), bytes_text(static_cast<double>(run.corpus->bytes())),
                           run.corpus->files().size(), run.corpus->files().size() == 1 ? "" : "s", run.data.lanes,
                           with_commas(static_cast<int64_t>(run.held_out.size()))));
  line("batch", fmt::format("micro_batch {} x seq_len {} x grad_accum {} = {} tokens a step; {} steps = {} tokens",
                            run.batch.micro_batch, c.train.seq_len, run.batch.grad_accum,
                            with_commas(run.batch.global_batch_tokens), with_commas(run.batch.steps),
                            with_commas(run.batch.tokens())));
  const double left =
      static_cast<double>(run.batch.steps - run.first_step()) * static_cast<double>(run.batch.global_batch_tokens);
  const double at_limit = left * run.flops.train / run.gemm_rate;
  line("work",
       fmt::format("{}FLOP per token, {}FLOP to do: {} at the matmul rate, {} to {} expected at 80% to 40% of it",
                   si_text(run.flops.train), si_text(left * run.flops.train), duration_text(at_limit),
                   duration_text(at_limit / 0.8), duration_text(at_limit / 0.4)));
  const Schedule schedule = run.schedule();
  line("schedule",
       fmt::format("lr {:.2e} after {} steps of warm-up, {} to {:.2e} at step {}", schedule.peak, schedule.warmup,
                   c.train.schedule, schedule.kind == ScheduleKind::constant ? schedule.peak : schedule.floor,
                   with_commas(schedule.total)));
  const int64_t at_once =
      checkpoints_at_once(c.checkpoint.keep_last, c.checkpoint.keep_every, c.checkpoint.every, run.batch.steps);
  std::error_code ec;
  const auto space = fs::space(run.store->dir(), ec);
  line("checkpoints",
       fmt::format("{}: {} each, every {} steps, the last {} kept; {} needed while writing, {} free",
                   run.store->dir().string(), bytes_text(static_cast<double>(checkpoint_size)), c.checkpoint.every,
                   c.checkpoint.keep_last, bytes_text(static_cast<double>(at_once * checkpoint_size)),
                   ec ? "unknown" : bytes_text(static_cast<double>(space.available))));
  const int64_t element = run.compute == at::kBFloat16 ? 2 : 4;
  const int64_t loops = *std::max_element(run.loops.begin(), run.loops.end());
  log::info("{}",
            memory_text(plan_memory(c.model, run.batch.micro_batch, c.train.seq_len, loops, run.recompute, element),
                        available));
  log::info("  recompute: {}",
            run.recompute == Recompute::loop ? "loop (each loop is run again in the backward pass)" : "none");
}

void find_checkpoint(Run& run, const TrainRequest& request) {
  const fs::path dir = run.config.checkpoint.dir;
  run.store.emplace(dir, run.config.checkpoint.keep_last, run.config.checkpoint.keep_every);
  if (auto newest = run.store->newest()) {
    if (!request.from.empty()) {
      throw refusal(fmt::format("{} already holds checkpoints, and --from names another beginning", dir.string()),
                    "add --fresh to set that run aside, or leave --from out to go on with it");
    }
    run.checkpoint = std::move(newest);
  } else if (!request.from.empty()) {
    run.checkpoint = Checkpoint::open(request.from);
    run.checkpoint->verify();
    run.weights_only = request.weights_only;
  }
}

}  // namespace

Run prepare_run(const TrainRequest& request) {
  Run run;
  std::vector<std::string> overrides = request.overrides;
  if (request.steps) overrides.push_back(fmt::format("train.steps={}", *request.steps));
  run.config = load_config(request.config, overrides);
  require_training_inputs(run.config);
  run.dir = run.config.run.dir;
  run.threads = run.config.train.threads > 0 ? run.config.train.threads : usable_cpus();
  at::set_num_threads(static_cast<int>(run.threads));
  run.device = choose_device(run.config.train.device);
  run.compute = choose_dtype(run.config.train.dtype, run.device);
  run.loops = run.config.train.loops;

  run.tokenizer = Tokenizer::load(run.config.tokenizer.path);
  run.config.resolve_vocab(run.tokenizer->n_ordinary());
  run.data = data_options(run.config);
  run.corpus = std::make_shared<const Corpus>(run.data);
  run.held_out = validation_documents(*run.corpus, run.data);

  // Only now, with every input known to be good, is anything touched on disk.
  std::error_code ec;
  if (request.fresh && fs::exists(run.dir, ec)) {
    { const FolderLock not_in_use(run.dir); }
    log::info("the old run is set aside as {}", set_run_aside(run.dir).string());
  }
  make_folder(run.dir);
  run.lock = std::make_unique<FolderLock>(run.dir);
  find_checkpoint(run, request);
  if (run.checkpoint) compare_with_checkpoint(run, request.force);

  const int64_t available = available_memory();
  const BatchChoice choice = choose_batch(run, available);
  run.recompute = choice.recompute;
  run.batch = batch_plan(run.config.train, choice.micro_batch);
  if (run.config.train.warmup_steps > 0 && run.config.train.warmup_steps >= run.batch.steps) {
    throw usage_error(fmt::format("train.warmup_steps is {}, and the run has {} steps", run.config.train.warmup_steps,
                                  run.batch.steps),
                      "make the warm-up shorter or the run longer");
  }
  run.finished = run.checkpoint && !run.weights_only && run.checkpoint->meta.step >= run.batch.steps;
  if (run.finished) return run;

  log::set_file(run.dir / "log.txt");
  run.flops = flops_per_token(run.config.model, run.config.train.seq_len, run.loops);
  run.gemm_rate = measure_gemm_rate(gemm_shapes(run.config.model, run.batch.micro_batch * run.config.train.seq_len,
                                                *std::max_element(run.loops.begin(), run.loops.end())),
                                    run.device, run.compute == at::kBFloat16 ? at::kBFloat16 : at::kFloat);
  run.store->prepare();
  const int64_t size = checkpoint_bytes(run.config.model);
  say_what_was_decided(run, size, available);
  for (const auto& w : warnings(run.config)) log::warn("{}", w);
  const int64_t element = run.compute == at::kBFloat16 ? 2 : 4;
  const auto memory = plan_memory(run.config.model, run.batch.micro_batch, run.config.train.seq_len,
                                  *std::max_element(run.loops.begin(), run.loops.end()), run.recompute, element);
  if (memory.total() > usable_memory() && run.device.is_cpu()) {
    const std::string text =
        fmt::format("this run needs about {} of memory and the machine has {}",
                    bytes_text(static_cast<double>(memory.total())), bytes_text(static_cast<double>(usable_memory())));
    if (!request.force)
      throw refusal(text, "use a smaller train.micro_batch, train.recompute=loop, or go on with --force");
    log::warn("{}", text);
  }
  try {
    run.store->require_room(size, run.config.checkpoint.every, run.batch.steps);
  } catch (const Error& e) {
    if (!request.force) throw;
    log::warn("{}", e.line());
  }
  write_file_atomically(run.dir / "config.toml", to_toml(run.config));
  return run;
}

}  // namespace mythos
