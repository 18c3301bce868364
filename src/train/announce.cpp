// What a run says when it begins.
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "kernels/device.h"
#include "kernels/memory.h"
#include "step/gemm_rate.h"
#include "storage/storage.h"
#include "train/run_parts.h"

#include <fmt/ranges.h>

namespace mythos {

namespace {

std::string loops_text(const std::vector<int64_t>& loops) {
  return loops.size() == 1 ? fmt::format("{}", loops[0]) : fmt::format("one of {} each step", fmt::join(loops, ", "));
}

}  // namespace

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
  line("tokenizer", fmt::format("{}: {} tokens; model vocabulary {}", shown_source(c.tokenizer.path),
                                with_commas(run.tokenizer->n_ids()), with_commas(c.model.vocab_size)));
  size_t files = 0;
  uint64_t bytes = 0;
  std::string names;
  for (const auto& corpus : run.sources.corpora) {
    files += corpus->files().size();
    bytes += corpus->bytes();
    names += (names.empty() ? "" : ", ") + corpus->name();
  }
  line("data",
       fmt::format("{}: {} in {} file{}, {} lanes, {} worker{}; {} documents held out", names,
                   bytes_text(static_cast<double>(bytes)), with_commas(static_cast<int64_t>(files)),
                   files == 1 ? "" : "s", run.loader->lanes(), run.data.workers, run.data.workers == 1 ? "" : "s",
                   run.n_held_out() < 0 ? "all of validation_source's" : with_commas(run.n_held_out())));
  for (const auto& [repository, commit] : run.data.storage->commits()) {
    line("revision", fmt::format("{} is {}", repository, commit));
  }
  line("batch", fmt::format("micro_batch {} x seq_len {} x grad_accum {} = {} tokens a step; {} steps = {} tokens",
                            run.batch.micro_batch, c.train.seq_len, run.batch.grad_accum,
                            with_commas(run.batch.global_batch_tokens), with_commas(run.batch.steps),
                            with_commas(run.batch.tokens())));
  if (!run.batch_why.empty()) line("", run.batch_why);
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
  line("checkpoints",
       fmt::format("{}: {} each, every {} steps, the last {} kept", run.store->dir().string(),
                   bytes_text(static_cast<double>(checkpoint_size)), c.checkpoint.every, c.checkpoint.keep_last));
  log::info("{}", memory_text(run.memory, available));
  log::info("  recompute: {}",
            run.recompute == Recompute::loop ? "loop (each loop is run again in the backward pass)" : "none");
}

void say_how_it_went(const Run& run, const StepGraph& graph) {
  if (!run.device.is_cpu()) {
    log::info("memory: tensors took {} at most, {} predicted", bytes_text(static_cast<double>(peak_memory(run.device))),
              bytes_text(static_cast<double>(run.memory.total() - run.memory.program)));
    if (graph.graphs() > 0) {
      log::info("each micro-step is one CUDA graph");
    } else if (!graph.why_not().empty()) {
      log::info("the kernels of a micro-step are started one by one: {}", graph.why_not());
    }
    return;
  }
  if (memory_use().peak == 0) return;
  log::info("{}", measured_memory_text(run.memory, memory_use().peak, peak_resident_bytes(), available_memory()));
}

}  // namespace mythos
