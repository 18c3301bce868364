#include "train/run.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_state.h"
#include "checkpoint/places.h"
#include "data/documents.h"
#include "data/tokenizer_source.h"
#include "infer/generate.h"
#include "step/gemm_rate.h"
#include "storage/storage.h"
#include "train/preflight.h"
#include "train/run_parts.h"
#include "train/saver.h"

#include <algorithm>

namespace mythos {
namespace fs = std::filesystem;

Schedule Run::schedule() const { return schedule_of(config.train, batch.steps); }

const std::vector<std::string>& Run::held_out() {
  if (!held_out_) held_out_ = validation_documents(sources, data);
  return *held_out_;
}

int64_t Run::n_held_out() const {
  return data.validation_documents == 0 && !data.validation_sources.empty() ? -1 : data.validation_documents;
}

namespace {

// Where this run's checkpoints were before, as far as that is known: by its own note, by its last configuration.
std::vector<std::string> earlier_places(const Run& run) {
  std::vector<std::string> places = checkpoint_places(run.dir);
  std::error_code ec;
  try {
    if (fs::exists(run.dir / "config.toml", ec)) places.push_back(load_config(run.dir / "config.toml").checkpoint.dir);
  } catch (const Error&) {  // a file from elsewhere: the note counts
  }
  if (fs::is_directory(run.dir / "checkpoints", ec)) places.push_back((run.dir / "checkpoints").string());
  std::vector<std::string> out;
  for (std::string& place : places) {
    const auto is_it = [&](const std::string& other) { return same_place(place, other); };
    if (!is_it(run.store->dir().string()) && std::none_of(out.begin(), out.end(), is_it)) out.push_back(place);
  }
  return out;
}

// A newer checkpoint of this run in an earlier checkpoint.dir, if there is one.
void look_in_earlier_places(Run& run) {
  const bool none_here = !run.checkpoint;
  for (const std::string& place : earlier_places(run)) {
    try {
      const CheckpointStore there(place, 1);
      const auto steps = there.list();
      if (run.checkpoint && (steps.empty() || steps.back() <= run.checkpoint->meta.step)) continue;
      auto newest = there.newest(CheckpointStore::Damaged::leave);
      if (newest && (!run.checkpoint || newest->meta.step > run.checkpoint->meta.step)) {
        run.checkpoint = std::move(newest);
        run.moved_from = place;
        continue;
      }
      // Not there at all is not the same as empty: it may not be mounted.
      std::error_code ec;
      if (!there.is_remote() && !fs::is_directory(place, ec)) throw failure("there is no such folder");
    } catch (const Error& e) {
      if (!none_here) {
        log::warn("the earlier checkpoint.dir {} was not looked into: {}", place, e.line());
        continue;
      }
      throw Error(e.code(),
                  fmt::format("{} holds no checkpoint, and those of before in {} cannot be used: {}",
                              run.store->dir().string(), place, e.what()),
                  "bring them back or put them into checkpoint.dir, or start anew with --fresh");
    }
  }
  if (run.moved_from.empty()) return;
  log::warn("checkpoint.dir was {} and is {} now: going on from {} there, saving here from now on", run.moved_from,
            run.store->dir().string(), run.checkpoint->path().string());
}

// What the run goes on from: its own newest checkpoint, or for a run that begins the one named by --from.
void find_checkpoint(Run& run, const TrainRequest& request) {
  if (!request.fresh) {
    run.checkpoint = run.store->newest();
    run.holds_checkpoints = !run.store->list().empty();
    look_in_earlier_places(run);
    if (run.checkpoint) {
      const auto& state = run.checkpoint->meta.state;
      if (state.is_object() && state.contains("from") && state["from"].is_string()) run.from = state["from"];
      if (!request.from.empty() && request.from.string() != run.from) {
        throw refusal(
            fmt::format("{} already holds checkpoints, and --from names another beginning", run.store->dir().string()),
            "add --fresh to set that run aside, or leave --from out to go on with it");
      }
      return;
    }
  }
  if (request.from.empty()) return;
  run.checkpoint = open_checkpoint(request.from);
  run.from = request.from.string();
  run.weights_only = request.weights_only;
  if (!run.weights_only && !run.checkpoint->has_optimizer) {
    throw usage_error(fmt::format("{} holds weights alone, no optimizer state", request.from.string()),
                      "add --weights-only to begin at step 0 with its weights");
  }
}

// What would stop the run at its first sample or held-out loss is found before it begins.
void check_inputs(Run& run) {
  GenerateOptions options;
  options.max_new_tokens = run.config.log.sample_tokens;
  for (const auto& prompt : run.config.log.prompts) {
    try {
      prompt_ids(run.config.model, *run.tokenizer, prompt, options);
    } catch (const Error& e) {
      throw usage_error(fmt::format("log.prompts has '{}': {}", prompt, e.what()),
                        "change log.prompts or lower log.sample_tokens");
    }
  }
  // A run that goes on has measured it before.
  if (run.first_step() > 0 || run.n_held_out() == 0) return;
  std::vector<int32_t> ids;
  for (const auto& document : run.held_out()) {
    run.tokenizer->encode(document, ids);
    if (ids.size() > 1) return;
  }
  throw usage_error("the held-out text has fewer than two tokens", "hold out more with data.validation_documents");
}

// The loader at the row where the run goes on; where the data is not what the checkpoint's position is of, a refusal or
// with `force` the data's begin.
void open_loader(Run& run, bool force) {
  run.sources = open_sources(run.data);
  const Encoder encoder = encoder_of(*run.tokenizer);
  if (run.checkpoint && !run.weights_only && !run.data_from_start) {
    try {
      run.loader = std::make_unique<RowLoader>(run.sources, run.data, encoder, &run.checkpoint->meta.data);
      return;
    } catch (const Stopped&) {
      throw;
    } catch (const Error& e) {
      if (!force) throw refusal(e.what(), "bring the data back, or begin at its start with --force");
      log::warn("{}; the data begins at its start again", e.what());
      run.data_from_start = true;
    }
  }
  run.loader = std::make_unique<RowLoader>(run.sources, run.data, encoder);
}

}  // namespace

namespace {

// What the configuration says, the same on every rank.
void read_configuration(Run& run, const TrainRequest& request) {
  if (request.weights_only && request.from.empty()) {
    throw usage_error("--weights-only is given without --from", "name the checkpoint with --from CHECKPOINT");
  }
  std::vector<std::string> overrides = request.overrides;
  if (request.steps) overrides.push_back(fmt::format("train.steps={}", *request.steps));
  run.config = load_config(request.config, overrides);
  require_training_inputs(run.config);
  run.dir = run.config.run.dir;
  run.store.emplace(run.config.checkpoint.dir, run.config.checkpoint.keep_last, run.config.checkpoint.keep_every);
  run.threads = run.config.train.threads > 0 ? run.config.train.threads : run.team->default_threads();
  at::set_num_threads(static_cast<int>(run.threads));
  run.device = choose_device(run.config.train.device, run.team->local_rank());
  run.compute = choose_dtype(run.config.train.dtype, run.device);
  run.loops = run.config.train.loops;
}

// What the first rank goes on from, on the others.
void follow_checkpoint(Run& run, const TrainRequest& request) {
  const Checkpoint* const found = run.checkpoint ? &*run.checkpoint : nullptr;
  const Json of_first = Json::parse(run.team->of_first(Json{
      {"step", found != nullptr ? found->meta.step : -1},
      {"from", run.from},
      {"weights_only", run.weights_only},
      {"holds", run.holds_checkpoints},
      {"moved_from", run.moved_from}}.dump()));
  run.team->together([&] {
    if (run.team->first()) return;
    const auto step = of_first["step"].get<int64_t>();
    run.from = of_first["from"].get<std::string>();
    run.weights_only = of_first["weights_only"].get<bool>();
    run.holds_checkpoints = of_first["holds"].get<bool>();
    run.moved_from = of_first["moved_from"].get<std::string>();
    if (step < 0) return;
    if (!run.from.empty() && !run.holds_checkpoints) {
      run.checkpoint = open_checkpoint(request.from);
    } else if (!run.moved_from.empty()) {
      run.checkpoint = open_checkpoint(CheckpointStore(run.moved_from, 1).path_of(step));
    } else {
      run.checkpoint = open_checkpoint(run.store->path_of(step));
    }
    if (run.checkpoint->meta.step == step) return;
    throw failure(fmt::format("rank 0 goes on from step {}, and this rank finds step {} in {}", step,
                              run.checkpoint->meta.step, run.checkpoint->path().string()),
                  "all ranks must see the same checkpoint.dir: a shared folder, or S3");
  });
}

// Whether the data's addresses are those that an earlier start read from.
bool has_read_its_data(const Run& run) {
  if (!run.checkpoint || run.weights_only || is_imported(run.checkpoint->meta)) return false;
  const auto before = parse_config(run.checkpoint->meta.config, "the checkpoint's config", run.config.run.name);
  return before.data.source == without_secrets(run.config).data.source;
}

// Tokenizer and data. The first rank, for which `of_first` is null, compares and checks; the others follow it.
void open_inputs(Run& run, const TrainRequest& request, const Json& of_first) {
  run.data = data_options(run.config);
  run.data.rank = run.team->rank();
  run.data.world = run.team->size();
  const bool first = of_first.is_null();
  if (!first) run.data.storage->pin(of_first.at("commits").get<std::map<std::string, std::string>>());
  // What has answered before is waited for as while training: the start may be that of a machine that came back.
  if (has_read_its_data(run)) run.data.storage->set_contact_patience(run.config.data.retry_minutes * 60);
  if (run.checkpoint && !run.weights_only) run.data.storage->pin(commits_of(run.checkpoint->meta.data));
  run.tokenizer = open_tokenizer(run.config, run.data);
  if (!first) {
    run.data_from_start = of_first.at("data_from_start").get<bool>();
  } else if (run.checkpoint) {
    compare_with_checkpoint(run, request.force);
  }
  open_loader(run, request.force);
  if (first) check_inputs(run);
}

// As the first rank chooses; what it measures is measured by it alone.
BatchChoice choose_batch_together(Run& run, int64_t available) {
  BatchChoice choice;
  run.team->first_alone([&] { choice = choose_batch(run, available); });
  if (!run.team->several()) return choice;
  const Json of_first = Json::parse(run.team->of_first(Json{
      {"micro_batch", choice.micro_batch},
      {"recompute", choice.recompute == Recompute::loop},
      {"why", choice.why},
      {"tokens_per_second", choice.tokens_per_second}}.dump()));
  return {.micro_batch = of_first["micro_batch"].get<int64_t>(),
          .recompute = of_first["recompute"].get<bool>() ? Recompute::loop : Recompute::none,
          .why = of_first["why"].get<std::string>(),
          .tokens_per_second = of_first["tokens_per_second"].get<double>() * static_cast<double>(run.team->size())};
}

void settle_batch(Run& run, const BatchChoice& choice) {
  run.recompute = choice.recompute;
  run.batch_why = choice.why;
  run.batch = batch_plan(run.config.train, choice.micro_batch, run.team->size());
  if (choice.tokens_per_second > 0) {
    run.planned = {choice.tokens_per_second, choice.micro_batch, choice.recompute, "measured before the run"};
  } else if (run.checkpoint && !run.weights_only && run.checkpoint->meta.state.is_object()) {
    run.planned = planned_pace_from(run.checkpoint->meta.state.value("plan", Json())).value_or(PlannedPace{});
  }
  // Another program's file does not say it; with this run's batch it comes to this.
  if (run.checkpoint && is_imported(run.checkpoint->meta)) {
    run.checkpoint->meta.tokens = run.checkpoint->meta.step * run.batch.global_batch_tokens;
  }
}

void settle_memory(Run& run, int64_t available) {
  const int64_t most_loops = *std::max_element(run.loops.begin(), run.loops.end());
  const int64_t element = run.compute == at::kBFloat16 ? 2 : 4;
  run.memory = plan_memory(run.config.model, run.batch.micro_batch, run.config.train.seq_len, most_loops, run.recompute,
                           element);
  // A copy to save from is worth having, but nothing that a run must end for.
  const int64_t copy = snapshot_bytes(run.config.model);
  run.saves_in_background =
      run.config.checkpoint.background && (!run.device.is_cpu() || run.memory.total() + copy <= available);
  if (run.device.is_cpu() && run.saves_in_background) run.memory.snapshot = copy;
  if (run.team->first() && run.config.checkpoint.background && !run.saves_in_background) {
    log::warn(
        "training will wait for each checkpoint to be written: a copy to write from takes {}, and memory has no "
        "room for it beside the run",
        bytes_text(static_cast<double>(copy)));
  }
}

// The first rank's: with all of it known to be good, folders are created or moved.
void enter(Run& run, const TrainRequest& request) {
  // What keep_last no longer keeps makes room.
  if (!request.fresh && run.holds_checkpoints) run.store->prune();
  Preflight preflight(request.force);
  look_before(preflight, run, checkpoint_bytes(run.config.model), request.fresh);
  preflight.settle();
  try {
    enter_folders(run, request.fresh);
  } catch (const Error& e) {
    throw refusal(e.what(), e.hint());  // nothing has begun
  }
  look_at_target(preflight, run);
  preflight.settle();
  log::set_file(run.dir / "log.txt");
  preflight.print();
}

// All ranks at once, as they will compute.
double measured_rate(const Run& run) {
  const int64_t most_loops = *std::max_element(run.loops.begin(), run.loops.end());
  GemmRate rate(
      gemm_shapes(run.config.model, run.batch.micro_batch * run.config.train.seq_len, most_loops, run.device.type()),
      run.device, run.compute);
  rate.round(1.5);
  double sum = 0;
  for (const auto& of_rank : all_numbers(*run.team->world(), std::vector<double>{rate.best()})) sum += of_rank[0];
  return sum;
}

}  // namespace

bool trains_on_gpu(const TrainRequest& request) {
  return choose_device(load_config(request.config, request.overrides).train.device).is_cuda();
}

Run prepare_run(const TrainRequest& request, const std::shared_ptr<Team>& shared_team) {
  Team& team = *shared_team;
  if (team.first()) log::keep_for_file();
  Run run;
  run.team = shared_team;
  team.together([&] { read_configuration(run, request); });
  team.set_timeout(run.config.train.peer_timeout);
  team.first_alone([&] {
    if (!request.fresh) lock_folders(run);
    find_checkpoint(run, request);
  });
  if (team.several()) follow_checkpoint(run, request);
  team.first_alone([&] { open_inputs(run, request, nullptr); });
  if (team.several()) {
    const Json own = team.first()
                         ? Json{{"commits", run.data.storage->commits()}, {"data_from_start", run.data_from_start}}
                         : Json();
    const Json of_first = Json::parse(team.of_first(own.dump()));
    team.together([&] {
      if (!team.first()) open_inputs(run, request, of_first);
    });
  }
  const int64_t available = available_memory() / team.ranks_here();
  const BatchChoice choice = choose_batch_together(run, available);
  team.together([&] { settle_batch(run, choice); });
  run.finished = run.checkpoint && !run.weights_only && run.checkpoint->meta.step >= run.batch.steps;
  if (run.finished) return run;
  team.together([&] { settle_memory(run, available); });
  team.first_alone([&] { enter(run, request); });
  run.flops = flops_per_token(run.config.model, run.config.train.seq_len, run.loops);
  run.gemm_rate = measured_rate(run);
  team.first_alone([&] {
    say_what_was_decided(run, checkpoint_bytes(run.config.model), available);
    for (const auto& w : warnings(run.config)) log::warn("{}", w);
    run.notifier = std::make_unique<Notifier>(run.config.run.notify, run.dir);
    write_file_atomically(run.dir / "config.toml", to_toml(without_secrets(run.config)));
  });
  return run;
}

}  // namespace mythos
