#include "train/preflight.h"

#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/layout.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

namespace mythos {
namespace fs = std::filesystem;
namespace {

std::string shown(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// Whether both folders are, or will be, on one file system.
bool share_a_disk(const fs::path& a, const fs::path& b) {
  struct stat first {
  }, second{};
  return ::stat(nearest_existing(a).c_str(), &first) == 0 && ::stat(nearest_existing(b).c_str(), &second) == 0 &&
         first.st_dev == second.st_dev;
}

void look_at_checkpoint(Preflight& preflight, const Run& run) {
  if (!run.checkpoint) return preflight.good("checkpoint", "none yet: the run begins at step 0");
  const std::string at = fmt::format("{}, verified", run.checkpoint->path().filename().string());
  if (run.weights_only) return preflight.good("checkpoint", fmt::format("the weights of {}", at));
  if (run.changed.empty()) return preflight.good("checkpoint", fmt::format("{}: the configuration is its own", at));
  preflight.good("checkpoint", fmt::format("{}; {}", at, fmt::join(run.changed, "; ")));
}

void look_at_memory(Preflight& preflight, const Run& run) {
  if (!run.device.is_cpu()) return;
  // What this process has taken already is in the plan's "program and libraries".
  const int64_t needed = run.memory.total();
  const int64_t available = std::min(usable_memory(), available_memory() + resident_bytes());
  if (needed <= available) {
    return preflight.good("memory", fmt::format("{} needed, {} available", shown(needed), shown(available)));
  }
  preflight.bad("memory",
                refusal(fmt::format("this run needs about {} of memory and the machine has {}", shown(needed),
                                    needed > usable_memory() ? shown(usable_memory()) : shown(available) + " free"),
                        "use a smaller train.micro_batch, train.recompute=loop, or go on with --force"));
}

void look_at_data(Preflight& preflight, const Run& run) {
  preflight.good("data", fmt::format("{}; the first document was found", size_text(run.sources)));
}

}  // namespace

void Preflight::bad(const std::string& what, const Error& error) {
  rows_.push_back({what, error.what(), true, error.hint()});
  errors_.push_back(error);
}

void Preflight::settle() {
  if (errors_.empty() || force_) return;
  print();
  const Error& first = errors_.front();
  throw refusal(first.what(), first.hint());
}

void Preflight::print() const {
  std::string table = "preflight";
  for (const Row& row : rows_) {
    table += fmt::format("\n  {:<12} {:<8} {}", row.what, row.bad ? "REFUSED" : "ok", row.said);
  }
  log::info("{}", table);
  for (const Error& e : errors_) {
    if (force_) log::warn("{}", e.line());
  }
}

std::string size_text(const Sources& sources) {
  int64_t files = 0;
  uint64_t bytes = 0;
  for (const auto& corpus : sources.corpora) {
    files += static_cast<int64_t>(corpus->files().size());
    bytes += corpus->bytes();
  }
  return fmt::format("{} in {} file{}", shown(static_cast<int64_t>(bytes)), with_commas(files), files == 1 ? "" : "s");
}

int64_t log_bytes(const RunConfig& config, int64_t steps) {
  // As measured: what a start says; a step's line of metrics and its event; a logged one's line, and both by expert and
  // loop; a sample.
  const int64_t experts = config.model.n_experts + config.model.max_loop_iters;
  const int64_t logged = steps / config.log.every + 1;
  const int64_t samples = config.log.sample_every > 0 ? steps / config.log.sample_every + 2 : 2;
  return (int64_t{64} << 10) + steps * 900 + logged * (250 + 70 * experts) +
         samples * static_cast<int64_t>(config.log.prompts.size()) * (500 + 20 * config.log.sample_tokens);
}

void look_at_disk(Preflight& preflight, const Run& run, int64_t checkpoint_size, bool fresh) {
  const auto& c = run.config.checkpoint;
  const int64_t at_once = checkpoints_at_once(c.keep_last, c.keep_every, c.every, run.batch.steps);
  const auto at_target = run.store->free_bytes();
  const int64_t logs = log_bytes(run.config, run.batch.steps);
  const bool together = !run.store->is_remote() && share_a_disk(run.dir, run.store->dir());
  try {
    run.store->require_room(checkpoint_size, c.every, run.batch.steps, !fresh, together ? logs : 0);
    preflight.good("checkpoints",
                   fmt::format("{} at the most ({} x {}), {} free in {}", shown(at_once * checkpoint_size), at_once,
                               shown(checkpoint_size), at_target ? shown(static_cast<int64_t>(*at_target)) : "unknown",
                               run.store->dir().string()));
  } catch (const Error& e) {
    preflight.bad("checkpoints", e);
  }
  const auto here = space_at(run.dir);
  if (!here) return preflight.good("logs", fmt::format("about {}", shown(logs)));
  const auto free = static_cast<int64_t>(here->available);
  if (logs > free) {
    return preflight.bad("logs", refusal(fmt::format("{} has {} free and the logs need about {} ({} bytes free)",
                                                     run.dir.string(), shown(free), shown(logs), free),
                                         "free space, or choose another run.dir"));
  }
  preflight.good("logs", fmt::format("about {}, {} free in {}", shown(logs), shown(free), run.dir.string()));
}

void look_before(Preflight& preflight, const Run& run, int64_t checkpoint_size, bool fresh) {
  look_at_checkpoint(preflight, run);
  look_at_data(preflight, run);
  look_at_memory(preflight, run);
  look_at_disk(preflight, run, checkpoint_size, fresh);
}

void look_at_target(Preflight& preflight, const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run.store->prepare();
  } catch (const Error& e) {
    return preflight.bad("write test", e);
  }
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  preflight.good("write test", fmt::format("a file was written, synced, renamed and removed in {} in {:.0f} ms",
                                           run.store->dir().string(), taken.count()));
}

}  // namespace mythos
