#include "train/trainer.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/signals.h"
#include "base/units.h"
#include "checkpoint/model_state.h"
#include "infer/evaluate.h"
#include "kernels/memory.h"
#include "step/gemm_rate.h"
#include "step/train_step.h"
#include "train/loop_statistics.h"
#include "train/out_of_memory.h"
#include "train/reporter.h"
#include "train/resume.h"
#include "train/run_parts.h"
#include "train/samples.h"
#include "train/saver.h"
#include "train/spot.h"
#include "train/stability.h"

#include <chrono>
#include <cmath>
#include <deque>

#ifndef MYTHOS_VERSION
#define MYTHOS_VERSION "unknown"
#endif

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// The first line of what went wrong; LibTorch's errors bring a whole stack.
std::string one_line(const std::exception& e) {
  const auto* const ours = dynamic_cast<const Error*>(&e);
  const std::string text = ours != nullptr ? ours->line() : e.what();
  return text.substr(0, text.find('\n'));
}

// Thrown out of an evaluation when a stop is asked for.
struct StopAsked {};

class Trainer {
 public:
  explicit Trainer(Run& run)
      : run_(run),
        config_(run.config),
        model_(config_.model, run.device, run.compute, at::kFloat, true),
        optimizer_(model_.parameters(), {config_.train.betas[0], config_.train.betas[1], config_.train.eps,
                                         config_.train.weight_decay, config_.train.decay_norms}),
        step_(model_, optimizer_),
        schedule_(run.schedule()),
        loader_(run.loader.get()),
        saver_(*run.store, {.every = config_.checkpoint.every,
                            .steps = run.batch.steps,
                            .background = run.saves_in_background,
                            .on_low_space = [this](const std::string& text) { tell(RunEvent::low_disk, text); }}),
        statistics_(config_.model.n_experts, config_.model.act_threshold),
        spot_(config_.run.spot_notice),
        stability_(config_.train.skip_limit, config_.train.rollback_limit),
        done_(run.first_step()) {
    install_save_handler();
    restore();
    report_ = std::make_unique<Reporter>(run_, done_);
    // Verified when it was opened; of a run that begins with another's checkpoint there is none here yet.
    if (run_.holds_checkpoints && done_ > 0) report_->checkpoint(done_, resumed_from_);
  }

  TrainResult run() {
    int exit_code = 0;
    try {
      exit_code = steps();
    } catch (const std::exception& e) {
      report_->ended("failed", one_line(e));
      tell(RunEvent::crash, one_line(e));
      throw;
    }
    const bool finished = done_ >= run_.batch.steps;
    report_->ended(finished ? "finished" : "stopped", why_stopped_);
    if (finished) tell(RunEvent::finish, fmt::format("{} is done: {} steps", config_.run.name, done_));
    // Who sends a signal knows of it.
    if (!finished && (exit_code == 0 || !spot_.what().empty())) tell(RunEvent::stop, why_stopped_);
    return {.exit_code = exit_code,
            .finished = finished,
            .step = done_,
            .steps = run_.batch.steps,
            .tokens = tokens_,
            .loss = last_.step > 0 ? last_.loss : std::nan(""),
            .run = run_.dir,
            .checkpoint = last_checkpoint()};
  }

 private:
  int steps() {
    if (done_ == 0) watch(0);
    while (done_ < run_.batch.steps) {
      const Outcome outcome = one_step();
      if (outcome == Outcome::stopped) break;
      if (outcome == Outcome::skipped) {
        if (stop_requested()) break;
        continue;
      }
      report_checkpoint();
      if (done_ == first_ + 1) say_memory();
      const bool last = done_ == run_.batch.steps;
      if (is_logged(done_)) log_step();
      if (config_.log.eval_every > 0 && done_ % config_.log.eval_every == 0 && !last) evaluate_now();
      if (config_.log.sample_every > 0 && done_ % config_.log.sample_every == 0 && !last) watch(done_);
      if (!last && config_.checkpoint.every > 0 && done_ % config_.checkpoint.every == 0) save(Save::soon);
      if (!last && limit_reached()) {
        save(Save::last);
        return 0;
      }
      if (take_save_request()) {
        log::info("asked for a checkpoint (SIGUSR1) at step {}", done_);
        save(Save::soon);
      }
      if (stop_requested()) break;
    }
    log::live_line("");
    if (stop_requested() && done_ < run_.batch.steps) return stop();
    save(Save::last);
    evaluate_now();
    watch(done_);
    log::info("done: {} steps, {} tokens in {}; the last checkpoint is {}", with_commas(done_), with_commas(tokens_),
              duration_text(seconds_before_ + train_seconds_), run_.store->path_of(done_).string());
    return 0;
  }

  // Those that step 0 has.
  void begin_weights() {
    if (weights_from_.empty()) {
      initialize(model_.parameters(), config_.model, static_cast<uint64_t>(config_.train.seed));
    } else {
      load_weights(open_checkpoint(weights_from_), model_);
    }
  }

  // Fresh weights, or those of the checkpoint with everything that belongs to them.
  void restore() {
    if (run_.checkpoint) {
      const Checkpoint& c = *run_.checkpoint;
      load_weights(c, model_);
      if (run_.weights_only) {
        weights_from_ = c.path();
      } else {
        load_moments(c, optimizer_);
        optimizer_.set_steps(c.meta.state.value("optimizer_steps", c.meta.step));
        tokens_ = c.meta.tokens;
        seconds_before_ = c.meta.state.value("seconds", 0.0);
        stability_.restore(c.meta.state.value("skipped", int64_t{0}), c.meta.state.value("rollbacks", int64_t{0}));
        resumed_from_ = c.path();
        const int64_t threads = c.meta.state.value("threads", run_.threads);
        if (threads != run_.threads) {
          log::warn(
              "this run began with {} threads and goes on with {}: sums are added in another order, so the last bits "
              "of "
              "the weights will differ from an undisturbed run's",
              threads, run_.threads);
        }
      }
      log::info("going on from {}: step {} of {}, {} tokens, next lr {:.2e}", c.path().string(), with_commas(done_),
                with_commas(run_.batch.steps), with_commas(tokens_), schedule_.rate(done_));
      const StateNorms norms = state_norms(model_.parameters(), optimizer_);
      log::info("norms: weights {:.6g}, first moments {:.6g}, second moments {:.6g}", norms.weights,
                norms.first_moments, norms.second_moments);
    } else {
      begin_weights();
    }
    first_ = done_;
    position_ = loader_->position();
    run_.checkpoint.reset();  // lets go of the mapped file
  }

  void tell(RunEvent event, const std::string& message) const {
    if (run_.notifier) run_.notifier->send(event, done_, message);
  }

  [[nodiscard]] bool is_logged(int64_t step) const {
    return step == run_.batch.steps || step % config_.log.every == 0 || step == first_ + 1;
  }

  enum class Outcome {
    done,
    skipped,  // not finite: nothing was updated, its data is passed over
    stopped,  // a stop was asked before it was complete
  };
  Outcome one_step() {
    const auto begin = Clock::now();
    if (done_ == first_) reset_memory_peak();
    const double waited = loader_->seconds_waited();
    const int64_t rows = run_.batch.micro_batch;
    const int64_t seq_len = config_.train.seq_len;
    const auto& choices = run_.loops;
    Random random(derive_seed(static_cast<uint64_t>(config_.train.seed), static_cast<uint64_t>(done_), "loops"));
    loops_ = choices[random.below(choices.size())];
    const bool logged = is_logged(done_ + 1);
    statistics_.begin();
    step_.begin({.clip = config_.train.clip,
                 .n_loops = loops_,
                 .recompute = run_.recompute,
                 .observer = logged ? &statistics_.observer() : nullptr,
                 .loss_tokens = static_cast<double>(run_.batch.global_batch_tokens)});
    // Where the run goes on, its whole next batch is read first, to be compared before anything is computed.
    if (done_ == first_ && first_ > 0 && !read_first_batch()) return Outcome::stopped;
    BatchHash batch;
    std::vector<int32_t> row(static_cast<size_t>(seq_len) + 1);
    for (int64_t micro = 0; micro < run_.batch.grad_accum; ++micro) {
      at::Tensor ids = at::empty({rows, seq_len + 1}, at::kLong);
      for (int64_t r = 0; r < rows; ++r) {
        if (!take_row(row)) return Outcome::stopped;
        batch.add(row);
        std::copy(row.begin(), row.end(), ids.mutable_data_ptr<int64_t>() + r * (seq_len + 1));
      }
      last_ids_ = ids.narrow(1, 0, seq_len);
      micro_step(ids.narrow(1, 0, seq_len).contiguous(), ids.narrow(1, 1, seq_len).contiguous());
      if (stop_requested() && micro + 1 < run_.batch.grad_accum) return Outcome::stopped;
      show_progress(micro + 1);
    }
    if (run_.before_update) run_.before_update(done_ + 1, model_.parameters());
    const double lr = schedule_.rate(done_);
    const StepResult result = step_.finish(lr);
    if (!result.updated) {
      train_seconds_ += seconds_since(begin);
      not_finite(result);
      return Outcome::skipped;
    }
    ++done_;
    tokens_ += run_.batch.global_batch_tokens;
    position_ = loader_->position();

    const double seconds = seconds_since(begin);
    const double wait = loader_->seconds_waited() - waited;
    train_seconds_ += seconds;
    window_seconds_ += seconds;
    window_wait_ += wait;
    ++window_steps_;
    last_ = {.step = done_,
             .total = run_.batch.steps,
             .loss = result.loss,
             .gradient_norm = result.gradient_norm,
             .lr = lr,
             .tokens = tokens_,
             .loops = loops_,
             .batch = batch.text(),
             .watched = logged ? std::optional(statistics_.read(loops_)) : std::nullopt};
    fill_speed(seconds, wait, 1);
    report_->step(last_, seconds);
    if (const auto usual = stability_.finite(result.loss)) {
      log::warn("the loss of step {} stands out: {:.4f}, the steps before had {:.4f} on average", done_, result.loss,
                *usual);
    }
    return Outcome::done;
  }

  bool read_first_batch() {
    BatchHash batch;
    std::vector<int32_t> row(static_cast<size_t>(config_.train.seq_len) + 1);
    std::deque<std::vector<int32_t>> rows;
    while (static_cast<int64_t>(rows.size()) < run_.batch.grad_accum * run_.batch.micro_batch) {
      if (!take_row(row)) return false;
      batch.add(row);
      rows.push_back(row);
    }
    log::info("the next batch is {} ({} rows)", batch.text(), rows.size());
    ahead_ = std::move(rows);
    return true;
  }

  // The next row to train on; false if a stop was asked for.
  bool take_row(std::vector<int32_t>& row) try {
    if (!ahead_.empty()) {
      row = std::move(ahead_.front());
      ahead_.pop_front();
    } else if (!next_row(row)) {
      throw failure(fmt::format("the data ended after {} of {} steps: {} tokens were there", with_commas(done_),
                                with_commas(run_.batch.steps), with_commas(tokens_)),
                    "set data.epochs = 0 to go round it, or give the run fewer steps");
    }
    return true;
  } catch (const Stopped&) {
    if (stop_requested()) return false;
    throw;
  }

  void micro_step(const at::Tensor& ids, const at::Tensor& targets) {
    try {
      step_.micro_step(ids, targets);
    } catch (const std::exception& e) {
      if (!is_out_of_memory(e)) throw;
      throw out_of_memory_error(
          fmt::format("step {}", done_ + 1), e, [&] { step_.micro_step(ids, targets); },
          memory_text(run_.memory, available_memory()));
    }
  }

  // The next row of the data; where there is none, or an error instead, what was trained so far is saved first.
  bool next_row(std::span<int32_t> row) {
    try {
      if (loader_->next(row)) return true;
    } catch (const Stopped&) {
      throw;
    } catch (const Error&) {
      save(Save::now);
      throw;
    }
    save(Save::now);
    return false;
  }

  // Nothing was updated. The data of the step is passed over; after too many in a row the run goes back.
  void not_finite(const StepResult& result) {
    const Verdict verdict = stability_.not_finite();
    log::warn("step {} is left out: its loss is {}, its gradient norm {} ({} left out so far)", done_ + 1, result.loss,
              result.gradient_norm, stability_.skipped());
    report_->skipped(done_ + 1, result.loss, result.gradient_norm);
    position_ = loader_->position();
    if (verdict == Verdict::skip) return;
    const std::string diagnosis = first_not_finite(model_, last_ids_, loops_);
    log::warn("{}", diagnosis);
    if (verdict == Verdict::roll_back) return roll_back();
    saver_.wait();
    throw failure(
        fmt::format("step {} is still not finite after going back {} times: {}. {}", done_ + 1, stability_.rollbacks(),
                    diagnosis,
                    last_checkpoint().empty() ? "No checkpoint was written yet"
                                              : fmt::format("The checkpoint {} is intact", last_checkpoint().string())),
        "start again with a lower train.lr and --force; the run goes on from its last checkpoint");
  }

  // To the last checkpoint, or where there is none to the beginning; the data goes on where it is.
  void roll_back() {
    saver_.wait();
    std::optional<Checkpoint> c = run_.store->newest();
    if (!c && !resumed_from_.empty()) c = open_checkpoint(resumed_from_);
    const std::string from = c ? c->path().string() : "the beginning";
    if (c) {
      load_weights(*c, model_);
      load_moments(*c, optimizer_);
      optimizer_.set_steps(c->meta.state.value("optimizer_steps", c->meta.step));
      done_ = c->meta.step;
      tokens_ = c->meta.tokens;
    } else {
      begin_weights();
      optimizer_.reset();
      done_ = tokens_ = 0;
    }
    saver_.went_back_to(done_);
    first_ = std::min(first_, done_);
    window_seconds_ = window_wait_ = 0;
    window_steps_ = 0;
    report_->going_back_to(done_);
    const std::string said = fmt::format(
        "going back to step {} ({}) after {} steps in a row that were not finite: time {} of {}; "
        "the data since is passed over",
        done_, from, config_.train.skip_limit, stability_.rollbacks(), config_.train.rollback_limit);
    log::warn("{}", said);
    tell(RunEvent::rollback, said);
  }

  void fill_speed(double seconds, double wait, int64_t steps) {
    const double tokens = static_cast<double>(steps * run_.batch.global_batch_tokens);
    last_.tokens_per_second = tokens / seconds;
    last_.mfu = last_.tokens_per_second * run_.flops.train / run_.gemm_rate;
    last_.memory_bytes = peak_resident_bytes();
    last_.data_wait = wait / seconds;
    const double average = train_seconds_ / static_cast<double>(std::max<int64_t>(1, done_ - first_));
    last_.eta_seconds = average * static_cast<double>(run_.batch.steps - done_);
    last_.price_per_hour = config_.cost.price_per_hour;
    last_.hours_so_far = hours();
  }

  double hours() const { return (seconds_before_ + train_seconds_) / 3600; }

  bool stop_early(const std::string& why) {
    log::info("{}: stopping at step {}", why, done_);
    why_stopped_ = why;
    return true;
  }

  bool limit_reached() {
    const double dollars = config_.cost.price_per_hour * hours();
    if (config_.train.max_hours > 0 && hours() >= config_.train.max_hours) {
      return stop_early(fmt::format("train.max_hours = {} is reached", config_.train.max_hours));
    }
    if (config_.cost.budget > 0 && dollars >= config_.cost.budget) {
      return stop_early(fmt::format("cost.budget = {} is spent", config_.cost.budget));
    }
    return false;
  }

  void log_step() {
    fill_speed(window_seconds_, window_wait_, window_steps_);
    report_->log_line(last_);
    window_seconds_ = window_wait_ = 0;
    window_steps_ = 0;
  }

  // What the first step took of what was predicted.
  void say_memory() {
    if (!run_.device.is_cpu() || memory_use().peak == 0) return;
    log::info("{}", measured_memory_text(run_.memory, memory_use().peak, peak_resident_bytes(), available_memory()));
  }

  void show_progress(int64_t micro) {
    if (!log::is_terminal()) return;
    const double average = train_seconds_ / static_cast<double>(std::max<int64_t>(1, done_ - first_));
    const std::string left =
        done_ > first_ ? duration_text(average * static_cast<double>(run_.batch.steps - done_)) : "?";
    std::string text = fmt::format("step {}/{}", done_ + 1, run_.batch.steps);
    if (run_.batch.grad_accum > 1) text += fmt::format(" ({}/{})", micro, run_.batch.grad_accum);
    if (done_ > first_) {
      text += fmt::format(" | loss {:.4f} | {} tok/s", last_.loss,
                          with_commas(static_cast<int64_t>(last_.tokens_per_second)));
    }
    log::live_line(fmt::format("{} | {} left", text, left));
  }

  enum class Save {
    soon,  // while training goes on; a failure is a warning
    now,   // before an error ends the run; a failure is a warning
    last,  // a failure is the run's
  };

  // Saves the state after the last completed step.
  void save(Save how) {
    if (done_ == 0 || done_ == first_) return;
    CheckpointMeta meta;
    meta.step = done_;
    meta.tokens = tokens_;
    meta.model = config_.model;
    meta.config = to_toml(without_secrets(config_));
    meta.tokenizer = run_.tokenizer->fingerprint();
    meta.seed = static_cast<uint64_t>(config_.train.seed);
    meta.data = position_;
    meta.state = {{"optimizer_steps", optimizer_.steps()},
                  {"seconds", seconds_before_ + train_seconds_},
                  {"threads", run_.threads},
                  {"micro_batch", run_.batch.micro_batch},
                  {"recompute", run_.recompute == Recompute::loop ? 2 : 1},
                  {"loss", last_.loss},
                  {"skipped", stability_.skipped()},
                  {"rollbacks", stability_.rollbacks()}};
    if (!run_.from.empty()) meta.state["from"] = run_.from;
    if (!optimizer_.lags().empty()) meta.state["optimizer_lags"] = lags_to_json(optimizer_.lags());
    meta.program = "mythos " MYTHOS_VERSION;
    meta.libtorch = libtorch_version();
    meta.host = host_name();
    meta.device = device_name(run_.device);
    TrainingState state;
    state.tensors = training_tensors(model_, optimizer_, state.copies);
    if (how == Save::soon) return saver_.save_soon(meta, std::move(state));
    try {
      saver_.save_now(meta, state, !stop_requested());
      report_checkpoint();
    } catch (const Error& e) {
      if (how == Save::last) throw;
      log::warn("no checkpoint at step {}: {}", done_, e.line());
    }
  }

  // A writer may have ended since the last time.
  void report_checkpoint() {
    const int64_t step = saver_.saved();
    if (step == reported_) return;
    reported_ = step;
    report_->checkpoint(step, run_.store->path_of(step));
  }

  // Empty if there is none.
  std::filesystem::path last_checkpoint() const {
    return saver_.saved() >= 0 ? run_.store->path_of(saver_.saved()) : resumed_from_;
  }

  int stop() {
    const int number = stop_signal();
    log::info("stopping on signal {} after step {}", number, done_);
    why_stopped_ = spot_.what().empty() ? fmt::format("signal {}", number) : spot_.what();
    save(Save::last);
    log::info("stopped; the same command goes on from step {}", done_);
    return 128 + number;
  }

  void evaluate_now() {
    if (run_.n_held_out() == 0 || stop_requested()) return;
    try {
      const EvaluationOptions options{.seq_len = config_.train.seq_len,
                                      .batch = run_.batch.micro_batch,
                                      .document_separator = config_.data.document_separator,
                                      .n_loops = run_.loops.back(),
                                      .max_tokens = 0};
      const Evaluation e = evaluate(model_, *run_.tokenizer, run_.held_out(), options, [](double share) {
        log::live_line(fmt::format("held-out loss: {:.0f}% done", 100 * share));
        if (stop_requested()) throw StopAsked{};
      });
      log::info("held-out at step {}: loss {:.4f}, perplexity {:.1f}, {:.3f} bits per byte ({} documents, {} bytes)",
                done_, e.loss, e.perplexity(), e.bits_per_byte(), with_commas(e.documents), with_commas(e.bytes));
      report_->held_out(done_, e);
    } catch (const StopAsked&) {
    } catch (const Error& e) {
      log::warn("no held-out loss at step {}: {}", done_, e.line());
    }
    log::live_line("");
  }

  void watch(int64_t step) {
    if (!config_.log.prompts.empty()) report_->samples(step, write_samples(model_, run_, step));
  }

  Run& run_;
  const RunConfig& config_;
  Model model_;
  AdamW optimizer_;
  TrainStep step_;
  Schedule schedule_;
  RowLoader* loader_;
  Saver saver_;
  LoopStatistics statistics_;
  std::unique_ptr<Reporter> report_;
  SpotStop spot_;
  Stability stability_;
  at::Tensor last_ids_;  // of the last micro-step
  std::string why_stopped_;
  Json position_;
  std::filesystem::path resumed_from_, weights_from_;
  std::deque<std::vector<int32_t>> ahead_;  // what is left of the first batch
  int64_t done_ = 0, first_ = 0, tokens_ = 0, loops_ = 0;
  int64_t reported_ = -1;  // the last saved step that the report knows
  double seconds_before_ = 0, train_seconds_ = 0, window_seconds_ = 0, window_wait_ = 0;
  int64_t window_steps_ = 0;
  StepMetrics last_;
};

}  // namespace

TrainResult train(Run& run) {
  try {
    return Trainer(run).run();
  } catch (const std::exception& e) {
    if (dynamic_cast<const Error*>(&e) != nullptr || !is_out_of_memory(e)) throw;
    throw out_of_memory_error(run.config.run.name, e, {}, memory_text(run.memory, available_memory()));
  }
}

TrainResult train(const TrainRequest& request) {
  Run run = prepare_run(request);
  if (!run.finished) return train(run);
  const CheckpointMeta& meta = run.checkpoint->meta;
  log::info("the run in {} is finished: {} of {} steps; more steps with --steps N --force, a new run with --fresh",
            run.dir.string(), meta.step, run.batch.steps);
  return {.exit_code = 0,
          .finished = true,
          .step = meta.step,
          .steps = run.batch.steps,
          .tokens = meta.tokens,
          .loss = meta.state.value("loss", std::nan("")),
          .run = run.dir,
          .checkpoint = run.checkpoint->path()};
}

Json to_json(const TrainResult& r) {
  return {{"run", r.run.string()},
          {"finished", r.finished},
          {"step", r.step},
          {"steps", r.steps},
          {"tokens", r.tokens},
          {"loss", std::isfinite(r.loss) ? Json(r.loss) : Json(nullptr)},
          {"checkpoint", r.checkpoint.empty() ? Json(nullptr) : Json(r.checkpoint.string())}};
}

}  // namespace mythos
