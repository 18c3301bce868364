#include "train/reporter.h"

#include "base/error.h"
#include "base/log.h"
#include "base/log_watcher.h"
#include "base/machine.h"
#include "checkpoint/meta.h"

#include <unistd.h>

namespace mythos {
namespace {

// A status that is up to date to the second or two is enough, however often the log is written.
constexpr auto status_pause = std::chrono::seconds(2);

std::unique_ptr<EventWriter> event_writer(const Run& run, int64_t last_step) {
  try {
    return std::make_unique<EventWriter>(run.dir / "tensorboard", last_step);
  } catch (const Error& e) {
    log::warn("no TensorBoard events: {}", e.line());
    return nullptr;
  }
}

}  // namespace

Reporter::Reporter(const Run& run, int64_t last_step, const std::filesystem::path& from)
    : run_(run),
      history_(run.dir),
      last_step_(last_step),
      metrics_(run.dir / "metrics.jsonl", last_step),
      events_(event_writer(run, last_step)) {
  if (run.device.is_cuda()) sensors_ = std::make_unique<GpuSensors>(run.device.index());
  status_.state = "running";
  status_.pid = ::getpid();
  status_.host = host_name();
  status_.started = utc_now();
  status_.step = last_step;
  status_.steps = run.batch.steps;
  status_.price_per_hour = run.config.cost.price_per_hour;
  write_status_now();
  history_.add("start", last_step,
               fmt::format("{}, process {} on {}: step {} of {}, micro_batch {} x grad_accum {}, checkpoints in {}",
                           from.empty() ? "began" : fmt::format("went on from {}", from.string()), status_.pid,
                           status_.host, last_step + 1, run.batch.steps, run.batch.micro_batch, run.batch.grad_accum,
                           run.store->dir().string()));
  log::set_watcher([this](std::string_view text) { history_.add("warning", last_step_, text); });
}

Reporter::~Reporter() { log::set_watcher({}); }

void Reporter::skipped(int64_t step, const StepResult& result, bool several, int64_t count) {
  const std::string whose =
      several && result.first_bad_rank >= 0 ? fmt::format(" (of rank {})", result.first_bad_rank) : "";
  log::warn("step {} is left out: its loss is {}{}, its gradient norm {} ({} left out so far)", step, result.loss,
            whose, result.gradient_norm, count);
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(fmt::format("{}", x)); };
  metrics_.write(
      {{"step", step}, {"skipped", true}, {"loss", number(result.loss)}, {"grad_norm", number(result.gradient_norm)}});
}

void Reporter::step(const StepMetrics& m, double seconds) {
  Json line = {{"step", m.step},
               {"loss", m.loss},
               {"grad_norm", m.gradient_norm},
               {"lr", m.lr},
               {"tokens", m.tokens},
               {"tokens_per_s", m.tokens_per_second},
               {"mfu", m.mfu},
               {"memory_bytes", m.memory_bytes},
               {"data_wait", m.data_wait},
               {"loops", m.loops},
               {"batch", m.batch},
               {"seconds", seconds}};
  EventWriter::Scalars curves = {{"train/loss", m.loss},
                                 {"train/grad_norm", m.gradient_norm},
                                 {"train/lr", m.lr},
                                 {"train/loops", static_cast<double>(m.loops)},
                                 {"speed/tokens_per_s", m.tokens_per_second},
                                 {"speed/mfu", m.mfu},
                                 {"speed/data_wait", m.data_wait},
                                 {"speed/memory_bytes", static_cast<double>(m.memory_bytes)}};
  if (m.watched) {
    const LoopSummary& w = *m.watched;
    line["experts"] = experts_json(w.experts);
    line["halting"] = halting_json(w);
    curves.emplace_back("experts/max_over_mean", w.experts.max_over_mean());
    curves.emplace_back("experts/unused", static_cast<double>(w.experts.unused()));
    for (size_t e = 0; e < w.experts.share.size(); ++e) {
      curves.emplace_back(fmt::format("experts_share/{:02}", e), w.experts.share[e]);
    }
    curves.emplace_back("halting/mean_loops", w.mean_loops);
    for (size_t t = 0; t < w.halted_by_loop.size(); ++t) {
      curves.emplace_back(fmt::format("halting/halted_by_{}", t + 1), w.halted_by_loop[t]);
    }
    if (const auto reading = sensors_ ? sensors_->read() : std::nullopt) {
      line["gpu"] = to_json(*reading);
      for (const auto& [name, value] : line["gpu"].items()) curves.emplace_back("gpu/" + name, value.get<double>());
    }
  }
  metrics_.write(line);
  if (events_) {
    events_->scalars(m.step, curves);
    events_->flush();  // a checkpoint of this step may follow, and with it no second chance for its points
  }
  last_step_ = m.step;
  status_.step = m.step;
  status_.tokens = m.tokens;
  status_.hours = m.hours_so_far;
}

void Reporter::log_line(const StepMetrics& window) {
  log::info("{}", mythos::log_line(window));
  status_.tokens_per_second = window.tokens_per_second;
  status_.mfu = window.mfu;
  status_.eta_seconds = window.eta_seconds;
  status_.hours = window.hours_so_far;
  if (std::chrono::steady_clock::now() - status_written_ >= status_pause) write_status_now();
}

void Reporter::held_out(int64_t step, const Evaluation& e) {
  metrics_.write({{"step", step}, {"held_out", to_json(e)}});
  if (!events_) return;
  events_->scalars(step, {{"held_out/loss", e.loss},
                          {"held_out/perplexity", e.perplexity()},
                          {"held_out/bits_per_byte", e.bits_per_byte()},
                          {"held_out/mean_loops", e.mean_loops}});
  events_->flush();
}

void Reporter::samples(int64_t step, const Json& samples) {
  metrics_.write({{"step", step}, {"samples", samples}});
  if (!events_) return;
  for (size_t i = 0; i < samples.size(); ++i) {
    events_->text(
        step, fmt::format("samples/{}", i),
        fmt::format("{}|{}", samples[i].at("prompt").get<std::string>(), samples[i].at("text").get<std::string>()));
  }
  events_->flush();
}

void Reporter::checkpoint(int64_t step, const std::filesystem::path& path) {
  status_.checkpoint_step = step;
  status_.checkpoint = path.string();
  write_status_now();
}

void Reporter::going_back_to(int64_t last_step) {
  metrics_.forget_after(last_step);
  if (events_) events_->going_back_to(last_step);
  status_.step = last_step;
  last_step_ = last_step;
  write_status_now();
}

void Reporter::ended(const std::string& state, const std::string& message) {
  if (events_) events_->flush();
  status_.state = state;
  status_.message = message;
  history_.add("end", last_step_, message.empty() ? state : fmt::format("{}: {}", state, message));
  if (state == "finished") status_.eta_seconds = 0;
  write_status_now();
}

void Reporter::write_status_now() {
  status_.updated = utc_now();
  write_status(run_.dir, status_);
  status_written_ = std::chrono::steady_clock::now();
}

}  // namespace mythos
