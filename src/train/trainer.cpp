#include "train/trainer.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/signals.h"
#include "base/units.h"
#include "infer/loop_statistics.h"
#include "kernels/memory.h"
#include "step/train_step.h"
#include "train/agreement.h"
#include "train/batches.h"
#include "train/held_out.h"
#include "train/out_of_memory.h"
#include "train/pace.h"
#include "train/reporter.h"
#include "train/resume.h"
#include "train/run_parts.h"
#include "train/samples.h"
#include "train/saver.h"
#include "train/shared_state.h"
#include "train/spot.h"
#include "train/stability.h"
#include "train/status.h"

#include <chrono>
#include <cmath>
#include <functional>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

class Trainer {
 public:
  explicit Trainer(Run& run)
      : run_(run),
        config_(run.config),
        team_(*run.team),
        agreed_(team_),
        sharding_(sharding_of(run)),
        model_(config_.model, run.device, run.compute, at::kFloat, true,
               sharding_ ? sharding_->partition() : Partition{}),
        optimizer_(model_.parameters(), {config_.train.betas[0], config_.train.betas[1], config_.train.eps,
                                         config_.train.weight_decay, config_.train.decay_norms}),
        step_(model_, optimizer_, sharding_.get(), config_.train.router_bias_speed, capture_of(config_.train)),
        schedule_(run.schedule()),
        batches_(*run.loader, run.batch.micro_batch, config_.train.seq_len),
        saver_(*run.store, {.every = config_.checkpoint.every,
                            .steps = run.batch.steps,
                            .background = run.saves_in_background,
                            .on_low_space = [this](int64_t step,
                                                   const std::string& text) { tell(RunEvent::low_disk, step, text); }}),
        statistics_(config_.model.n_experts, config_.model.act_threshold, std::ranges::max(config_.train.loops)),
        spot_(config_.run.spot_notice),
        stability_(config_.train.skip_limit, config_.train.rollback_limit),
        pace_({.steps = run.batch.steps,
               .tokens_per_step = run.batch.global_batch_tokens,
               .flops_per_token = run.flops.train,
               .peak_flops = run.gemm_rate,
               .price_per_hour = config_.cost.price_per_hour,
               .max_hours = config_.train.max_hours,
               .budget = config_.cost.budget}),
        plan_(run.planned, run.batch.micro_batch, run.recompute, run.loops.size() > 1 ? 50 : 3),
        done_(run.first_step()) {
    install_save_handler();
    restore();
    parts_ = ranks_write_parts(run_, sharding_.get());
    if (team_.first()) report_ = std::make_unique<Reporter>(run_, done_, done_ > 0 ? resumed_from_ : weights_from_);
    // Verified when it was opened; of a run that begins with another's checkpoint there is none here yet.
    if (report_ && run_.holds_checkpoints && done_ > 0) report_->checkpoint(done_, resumed_from_);
  }

  TrainResult run() {
    int exit_code = 0;
    try {
      exit_code = steps();
    } catch (const std::exception& e) {
      if (report_) report_->ended("failed", one_line(e));
      tell(RunEvent::crash, done_, one_line(e));
      throw;
    }
    const bool finished = done_ >= run_.batch.steps;
    if (report_) report_->ended(finished ? "finished" : "stopped", why_stopped_);
    if (finished) tell(RunEvent::finish, done_, fmt::format("{} is done: {} steps", config_.run.name, done_));
    // Who sends a signal knows of it.
    if (!finished && (exit_code == 0 || !spot_.what().empty())) tell(RunEvent::stop, done_, why_stopped_);
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
      team_.at_step(done_ + 1);
      const Outcome outcome = one_step();
      const bool done = outcome == Outcome::done;
      if (done && done_ < run_.batch.steps && team_.first()) why_stopped_ = pace_.limit_reached();
      const auto wishes = agreed_.after_step({.save = done && take_save_request(),
                                              .limit = done && !why_stopped_.empty(),
                                              .part_lost = saver_.take_part_lost()});
      if (wishes.part_lost) saver_.give_up_on_parts();
      if (outcome == Outcome::skipped && !agreed_.stopping()) continue;
      if (outcome != Outcome::done) break;
      report_checkpoint();
      if (team_.first() && done_ == first_ + 1) say_how_it_went(run_, step_.graph());
      const bool last = done_ == run_.batch.steps;
      if (is_logged(done_)) log_step();
      if (config_.log.eval_every > 0 && done_ % config_.log.eval_every == 0 && !last) evaluate_now();
      if (config_.log.sample_every > 0 && done_ % config_.log.sample_every == 0 && !last) watch(done_);
      if (!last && config_.checkpoint.every > 0 && done_ % config_.checkpoint.every == 0) save(Save::soon);
      if (!last && wishes.limit) {
        if (team_.first()) log::info("{}: stopping at step {}", why_stopped_, done_);
        save(Save::last);
        return 0;
      }
      if (wishes.save) {
        log::info("asked for a checkpoint (SIGUSR1) at step {}", done_);
        save(Save::soon);
      }
      if (agreed_.stopping()) break;
    }
    log::live_line("");
    if (agreed_.stopping() && done_ < run_.batch.steps) return stop();
    save(Save::last);
    evaluate_now();
    watch(done_);
    log::info("done: {} steps, {} tokens in {}; the last checkpoint is {}", with_commas(done_), with_commas(tokens_),
              duration_text(pace_.seconds()), run_.store->path_of(done_).string());
    return 0;
  }

  // Fresh weights, or those of the checkpoint with everything that belongs to them.
  void restore() {
    if (run_.checkpoint) {
      const Checkpoint& c = *run_.checkpoint;
      if (run_.weights_only) {
        weights_from_ = c.path();
        load_weights(c, model_);
      } else {
        load_training_state(c, model_, optimizer_);
        tokens_ = c.meta.tokens;
        pace_.restore(c.meta.state.value("seconds", 0.0));
        stability_.restore(c.meta.state.value("skipped", int64_t{0}), c.meta.state.value("rollbacks", int64_t{0}));
        resumed_from_ = c.path();
        warn_of_other_threads(run_, c.meta);
      }
      say_going_on(run_, tokens_, state_norms(model_.parameters(), optimizer_, sharding_.get()));
    } else {
      begin_weights(run_, weights_from_, model_);
    }
    first_ = done_;
    position_ = run_.loader->position();
    run_.checkpoint.reset();  // lets go of the mapped file, whose pages were counted
    reset_peak_resident_bytes();
  }

  void tell(RunEvent event, int64_t step, const std::string& message) const {
    if (run_.notifier) run_.notifier->send(event, step, message);
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
    const double waited = run_.loader->seconds_waited();
    Random random(derive_seed(static_cast<uint64_t>(config_.train.seed), static_cast<uint64_t>(done_), "loops"));
    loops_ = run_.loops[random.below(run_.loops.size())];
    const bool logged = is_logged(done_ + 1);
    statistics_.begin();
    step_.begin({.clip = config_.train.clip,
                 .n_loops = loops_,
                 .recompute = run_.recompute,
                 .observer = logged ? &statistics_.observer() : nullptr,
                 .loss_tokens = static_cast<double>(run_.batch.global_batch_tokens),
                 .micro_steps = run_.batch.grad_accum});
    // Where the run goes on, its whole next batch is read first, to be compared before anything is computed.
    if (done_ == first_ && first_ > 0 && !read_first_batch()) return Outcome::stopped;
    BatchHash batch;
    at::Tensor ids;
    for (int64_t micro = 0; micro < run_.batch.grad_accum; ++micro) {
      if (!read([&] { return batches_.next(ids, batch); })) return Outcome::stopped;
      last_ids_ = ids.narrow(1, 0, config_.train.seq_len);
      micro_step(last_ids_.contiguous(), ids.narrow(1, 1, config_.train.seq_len).contiguous());
      // Several ranks are asked before the next rows.
      if (!team_.several() && stop_requested() && micro + 1 < run_.batch.grad_accum) return Outcome::stopped;
      show_progress(micro + 1);
    }
    if (run_.before_update) run_.before_update(done_ + 1, model_.parameters());
    const double lr = schedule_.rate(done_);
    const StepResult result = step_.finish(lr);
    if (!result.updated) {
      pace_.lost(seconds_since(begin));
      not_finite(result);
      return Outcome::skipped;
    }
    ++done_;
    tokens_ += run_.batch.global_batch_tokens;
    position_ = run_.loader->position();
    const double seconds = seconds_since(begin);
    pace_.step(seconds, run_.loader->seconds_waited() - waited);
    last_ = {.step = done_,
             .total = run_.batch.steps,
             .loss = result.loss,
             .gradient_norm = result.gradient_norm,
             .lr = lr,
             .tokens = tokens_,
             .loops = loops_,
             .batch = batch.text(*team_.world()),
             .watched = logged ? std::optional(statistics_.read(loops_, *team_.world())) : std::nullopt};
    pace_.fill_last(last_, done_);
    if (report_) report_->step(last_, seconds);
    look_for_trouble(stability_, last_, config_.model.n_experts_per_tok, config_.train.router_bias_speed > 0,
                     team_.first());
    return Outcome::done;
  }

  bool read_first_batch() {
    BatchHash batch;
    if (!read([&] { return batches_.look_ahead(run_.batch.grad_accum, batch); })) return false;
    log::info("the next batch is {} ({} rows)", batch.text(*team_.world()),
              run_.batch.grad_accum * run_.batch.micro_batch * team_.size());
    return true;
  }

  // Reads rows; false if a stop was asked for. Where the data ends, or an error comes instead, what was trained so far
  // is saved first.
  bool read(const std::function<Read()>& rows) {
    try {
      const Read read = agreed_.read(rows);
      if (read != Read::ended) return read == Read::whole;
      if (!team_.first()) throw PeerFailed(ExitCode::failed, 0, "the data ended");
      throw failure(fmt::format("the data ended after {} of {} steps: {} tokens were there", with_commas(done_),
                                with_commas(run_.batch.steps), with_commas(tokens_)),
                    "set data.epochs = 0 to go round it, or give the run fewer steps");
    } catch (const Stopped&) {
      throw;
    } catch (const Error&) {
      save(Save::now);
      team_.leave();
      throw;
    }
  }

  void micro_step(const at::Tensor& ids, const at::Tensor& targets) {
    try {
      step_.micro_step(ids, targets);
    } catch (const std::exception& e) {
      if (!is_out_of_memory(e)) throw;
      throw out_of_memory_error(
          fmt::format("step {}", done_ + 1), e,
          // What others wait for cannot be tried again.
          team_.several() ? std::function<void()>() : [&] { step_.micro_step(ids, targets); },
          memory_text(run_.memory, available_memory()));
    }
  }

  // Nothing was updated. The data of the step is passed over; after too many in a row the run goes back.
  void not_finite(const StepResult& result) {
    const Verdict verdict = stability_.not_finite();
    if (report_) report_->skipped(done_ + 1, result, team_.several(), stability_.skipped());
    position_ = run_.loader->position();
    if (verdict == Verdict::skip) return;
    std::string diagnosis;
    with_all_weights([&] { diagnosis = first_not_finite(model_, last_ids_, loops_); });
    diagnosis = team_.of_first(diagnosis);
    if (team_.first()) log::warn("{}", diagnosis);
    if (verdict == Verdict::roll_back) return roll_back();
    saver_.wait();
    team_.leave();
    if (!team_.first()) throw PeerFailed(ExitCode::failed, 0, diagnosis);
    throw gave_up(done_ + 1, stability_.rollbacks(), diagnosis, last_checkpoint());
  }

  // To the last checkpoint, or where there is none to the beginning; the data goes on where it is.
  void roll_back() {
    saver_.wait();
    std::optional<Checkpoint> c = newest_of_all(run_, resumed_from_);
    const std::string from = c ? c->path().string() : "the beginning";
    if (c) {
      load_training_state(*c, model_, optimizer_);
      done_ = c->meta.step;
      tokens_ = c->meta.tokens;
    } else {
      begin_weights(run_, weights_from_, model_);
      optimizer_.reset();
      done_ = tokens_ = 0;
    }
    saver_.went_back_to(done_);
    first_ = std::min(first_, done_);
    pace_.forget_window();
    logged_ = done_;
    if (report_) report_->going_back_to(done_);
    const std::string said = fmt::format(
        "going back to step {} ({}) after {} steps in a row that were not finite: time {} of {}; "
        "the data since is passed over",
        done_, from, config_.train.skip_limit, stability_.rollbacks(), config_.train.rollback_limit);
    if (team_.first()) log::warn("{}", said);
    tell(RunEvent::rollback, done_, said);
  }

  void log_step() {
    pace_.fill_window(last_, done_);
    if (!report_) return;
    report_->log_line(last_);
    // A start's first step also makes tables and buffers.
    const int64_t steps = done_ > first_ + 1 ? done_ - logged_ : 0;
    if (const auto off = plan_.add(steps, last_.tokens_per_second, last_.data_wait)) log::warn("{}", *off);
    logged_ = done_;
  }

  void show_progress(int64_t micro) {
    if (log::is_terminal()) log::live_line(live_line(last_, done_ + 1, micro, run_.batch, pace_.seconds_left(done_)));
  }

  enum class Save {
    soon,  // while training goes on; a failure is a warning
    now,   // before an error ends the run; a failure is a warning
    last,  // a failure is the run's
  };

  // Saves the state after the last completed step.
  void save(Save how) {
    if (done_ == 0 || done_ == first_) return;
    CheckpointMeta meta = checkpoint_meta(run_);
    if (plan_.planned().tokens_per_second > 0) meta.state["plan"] = to_json(plan_.planned());
    meta.step = done_;
    meta.tokens = tokens_;
    meta.data = position_of_all(team_, position_);
    note_updates(optimizer_, meta.state);
    meta.state.update({{"seconds", pace_.seconds()},
                       {"loss", last_.loss},
                       {"skipped", stability_.skipped()},
                       {"rollbacks", stability_.rollbacks()}});
    if (how != Save::soon) saver_.wait();
    const bool needless = saver_.saved() == done_ || (how == Save::soon && saver_.leave_out(done_));
    if (team_.of_first(needless ? 1 : 0) != 0) return;
    try {
      TrainingState state = state_to_save(run_, meta, model_, optimizer_, sharding_.get(), parts_);
      if (!team_.first() && !state.share) return;
      if (how == Save::soon) return saver_.save_soon(meta, std::move(state));
      saver_.save_now(meta, state, !agreed_.stopping());
      report_checkpoint();
    } catch (const Error& e) {
      if (how == Save::last) throw;
      log::warn("no checkpoint at step {}: {}", done_, e.line());
    }
  }

  // For what the first rank does with the model beside training.
  template <class Work>
  void with_all_weights(const Work& work) {
    if (sharding_) sharding_->hold_all();
    if (team_.first()) work();
    if (sharding_) sharding_->release_all();
  }

  // A writer may have ended since the last time.
  void report_checkpoint() {
    const int64_t step = saver_.saved();
    if (!report_ || step == reported_) return;
    reported_ = step;
    report_->checkpoint(step, run_.store->path_of(step));
  }

  // Empty if there is none.
  std::filesystem::path last_checkpoint() const {
    return saver_.saved() >= 0 ? run_.store->path_of(saver_.saved()) : resumed_from_;
  }

  int stop() {
    const int number = agreed_.stop_signal();
    log::info("stopping on signal {} after step {}", number, done_);
    why_stopped_ = spot_.what().empty() ? fmt::format("signal {}", number) : spot_.what();
    save(Save::last);
    log::info("stopped; the same command goes on from step {}", done_);
    return 128 + number;
  }

  void evaluate_now() {
    if (run_.n_held_out() == 0) return;
    with_all_weights([&] {
      if (const auto e = measure_held_out(model_, run_, done_)) report_->held_out(done_, *e);
    });
  }

  void watch(int64_t step) {
    if (config_.log.prompts.empty()) return;
    with_all_weights([&] { report_->samples(step, write_samples(model_, run_, step)); });
  }

  Run& run_;
  const RunConfig& config_;
  Team& team_;
  Agreement agreed_;
  std::unique_ptr<Sharding> sharding_;  // of several ranks
  bool parts_ = false;                  // each of them writes its part of a checkpoint
  Model model_;
  AdamW optimizer_;
  TrainStep step_;
  Schedule schedule_;
  BatchReader batches_;
  Saver saver_;
  LoopStatistics statistics_;
  std::unique_ptr<Reporter> report_;  // of the first rank
  SpotStop spot_;
  Stability stability_;
  Pace pace_;
  PaceWatch plan_;
  at::Tensor last_ids_;  // of the last micro-step
  std::string why_stopped_;
  Json position_;
  std::filesystem::path resumed_from_, weights_from_;
  int64_t done_ = 0, first_ = 0, tokens_ = 0, loops_ = 0;
  int64_t logged_ = 0;     // the last step that had a line
  int64_t reported_ = -1;  // the last saved step that the report knows
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

}  // namespace mythos
