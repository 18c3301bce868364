#include "train/doctor.h"

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "config/batch_plan.h"
#include "data/tokenizer_source.h"
#include "kernels/device.h"
#include "plan/run_plan.h"
#include "step/gemm_rate.h"
#include "storage/hub_address.h"
#include "storage/s3_settings.h"
#include "storage/url.h"
#include "train/preflight.h"
#include "train/run_parts.h"
#include "train/saver.h"
#include "train/status.h"

#include <ATen/Version.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>

#ifndef MYTHOS_VERSION
#define MYTHOS_VERSION "unknown"
#endif

namespace mythos {
namespace fs = std::filesystem;
namespace {

using Mark = Finding::Mark;

std::string shown(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// Where a command is, as the shell would look for it; empty if nowhere.
std::string found_command(const std::string& name) {
  std::string folders = process_environment("PATH");
  while (!folders.empty()) {
    const size_t end = std::min(folders.find(':'), folders.size());
    const fs::path path = fs::path(folders.substr(0, end)) / name;
    if (::access(path.c_str(), X_OK) == 0) return path.string();
    folders.erase(0, end + 1);
  }
  return "";
}

Finding gpus() {
  if (at::hasCUDA()) {
    std::string said;
    for (size_t i = 0; i < at::getNumGPUs(); ++i) {
      const at::Device gpu(at::kCUDA, static_cast<at::DeviceIndex>(i));
      said += fmt::format("{}{} ({} free)", i > 0 ? ", " : "", device_name(gpu), shown(free_memory(gpu)));
    }
    return {"GPU", Mark::good, said, ""};
  }
  std::error_code ec;
  if (fs::exists("/dev/nvidia0", ec)) {
    return {"GPU", Mark::bad, "an NVIDIA GPU is here, and this program cannot use it: runs would train on the CPU",
            "look at nvidia-smi, and build for the GPU with scripts/gpu_build"};
  }
  return {"GPU", Mark::note, "none: runs train on the CPU", ""};
}

Finding disk_here() {
  const auto space = space_at(".");
  if (!space) return {"disk", Mark::note, "the file system here does not tell its free space", ""};
  return {"disk", Mark::good,
          fmt::format("{} of {} free here", shown(static_cast<int64_t>(space->available)),
                      shown(static_cast<int64_t>(space->capacity))),
          ""};
}

// What is read from S3 is copied there first.
Finding temporary_space() {
  std::error_code ec;
  const fs::path folder = fs::temp_directory_path(ec);
  const auto space = space_at(folder);
  if (ec || !space || ::access(folder.c_str(), W_OK) != 0) {
    return {"temporary", Mark::note, "temporary files cannot be written: checkpoints from S3 are read through memory",
            "set TMPDIR to a folder with room for a checkpoint"};
  }
  return {"temporary", Mark::good,
          fmt::format("{} free in {}, where checkpoints from S3 are read through",
                      shown(static_cast<int64_t>(space->available)), folder.string()),
          ""};
}

Finding hub() {
  try {
    const HubSettings s = hub_settings();
    return {"hub", Mark::good,
            fmt::format("{}, {}, small files in {}{}", shown_url(s.endpoint),
                        s.token.empty() ? "no token (public repositories alone)" : "with a token", s.cache.string(),
                        s.offline ? "; HF_HUB_OFFLINE: nothing is asked for" : ""),
            ""};
  } catch (const Error& e) {
    return {"hub", Mark::bad, e.what(), e.hint()};
  }
}

Finding s3() {
  try {
    const S3Settings s = s3_settings();
    const auto set = [](const char* name) { return !process_environment(name).empty(); };
    std::string file = process_environment("AWS_SHARED_CREDENTIALS_FILE");
    if (file.empty()) file = process_environment("HOME") + "/.aws/credentials";
    std::error_code ec;
    const bool in_file = fs::exists(file, ec);
    const std::string who = set("AWS_ACCESS_KEY_ID") ? "credentials in the environment"
                            : in_file                ? "credentials in " + file
                                                     : "no credentials but a machine's role";
    return {"S3", Mark::good,
            fmt::format("{}, region {}, {}",
                        s.endpoint.empty() ? "Amazon" : shown_url(fmt::format("{}://{}", s.scheme, s.endpoint)),
                        s.region.empty() ? "not set" : s.region, who),
            ""};
  } catch (const Error& e) {
    return {"S3", Mark::bad, e.what(), e.hint()};
  }
}

Finding command(const char* what, const char* name, const char* for_what, const char* advice) {
  const std::string path = found_command(name);
  if (!path.empty()) return {what, Mark::good, path, ""};
  return {what, Mark::note, fmt::format("there is no {}: {}", name, for_what), advice};
}

// --- a run ---

class Examination {
 public:
  Examination(const fs::path& config, const std::vector<std::string>& overrides) {
    run_.config = load_config(config, overrides);
    require_training_inputs(run_.config);
    run_.dir = run_.config.run.dir;
    run_.loops = run_.config.train.loops;
    run_.threads = run_.config.train.threads > 0 ? run_.config.train.threads : default_threads();
    at::set_num_threads(static_cast<int>(run_.threads));
  }

  std::vector<Finding> all() {
    look("device", [&] { return device(); });
    look(
        "tokenizer", [&] { return tokenizer(); }, "check tokenizer.path");
    look("data", [&] { return data(); });
    look("run", [&] { return folder(); });
    look("run memory", [&] { return memory(); });
    look("batch", [&] { return batch(); });
    disk();
    look("write test", [&] { return write_test(); });
    return std::move(findings_);
  }

 private:
  // What it says, or the error that it throws, with that one's hint or what to do `otherwise`.
  void look(const char* what, const std::function<std::string()>& say, const char* otherwise = "") {
    try {
      const std::string said = say();
      if (!said.empty()) findings_.push_back({what, Mark::good, said, ""});
    } catch (const Stopped&) {
      throw;
    } catch (const Error& e) {
      findings_.push_back({what, Mark::bad, e.what(), e.hint().empty() ? otherwise : e.hint()});
    }
  }

  std::string device() {
    run_.device = choose_device(run_.config.train.device);
    run_.compute = choose_dtype(run_.config.train.dtype, run_.device);
    return fmt::format("{}, {}{}", device_name(run_.device), run_.compute == at::kBFloat16 ? "bf16" : "fp32",
                       run_.device.is_cpu() ? fmt::format(", {} threads", run_.threads) : "");
  }

  std::string tokenizer() {
    run_.data = data_options(run_.config);
    const auto begin = Clock::now();
    run_.tokenizer = open_tokenizer(run_.config, run_.data);
    return fmt::format("{}: {} ordinary tokens, read in {:.1f} s", shown_source(run_.config.tokenizer.path),
                       with_commas(run_.tokenizer->n_ordinary()), seconds_since(begin));
  }

  std::string data() {
    const auto begin = Clock::now();
    run_.sources = open_sources(run_.data);
    const std::string said = fmt::format("{}, found in {:.1f} s", size_text(run_.sources), seconds_since(begin));
    if (!run_.tokenizer) return said + "; not read, for want of a tokenizer";
    const auto opened = Clock::now();
    run_.loader = std::make_unique<RowLoader>(run_.sources, run_.data, encoder_of(*run_.tokenizer));
    std::vector<int32_t> row(static_cast<size_t>(run_.config.train.seq_len) + 1);
    if (!run_.loader->next(row)) throw failure("the data ends before its first row", "give it more text");
    run_.loader.reset();
    return fmt::format("{}; the first row of {} tokens in {:.1f} s", said, with_commas(run_.config.train.seq_len),
                       seconds_since(opened));
  }

  std::string folder() {
    run_.store.emplace(run_.config.checkpoint.dir, run_.config.checkpoint.keep_last, run_.config.checkpoint.keep_every);
    const ObservedRun seen = observe_run(run_.dir);
    if (seen.state == "running" || seen.state == "starting") {
      throw refusal(fmt::format("a process is training in {}", run_.dir.string()),
                    "wait for it, or choose another folder with --set run.dir=DIR");
    }
    const auto steps = run_.store->list();
    if (steps.empty()) return fmt::format("{}: a run would begin at step 0", run_.dir.string());
    return fmt::format("{}: {}; a run would go on from step {} of {}", run_.dir.string(), seen.state,
                       with_commas(steps.back()), run_.store->dir().string());
  }

  std::string memory() {
    const int64_t element = run_.compute == at::kBFloat16 ? 2 : 4;
    const int64_t available = free_memory(run_.device);
    const auto& t = run_.config.train;
    micro_batch_ = t.micro_batch > 0 ? t.micro_batch : predicted_batch(run_.config, element, available, most_rows(t));
    const int64_t loops = std::ranges::max(t.loops);
    const Recompute recompute = t.recompute == "none"   ? Recompute::none
                                : t.recompute == "loop" ? Recompute::loop
                                                        : least_recompute(run_.config.model, micro_batch_, t.seq_len,
                                                                          loops, element, available);
    const int64_t needed = plan_memory(run_.config.model, micro_batch_, t.seq_len, loops, recompute, element).total();
    std::string said = fmt::format("{} needed for micro_batch {}{}, {} available", shown(needed), micro_batch_,
                                   recompute == Recompute::loop ? " with recompute" : "", shown(available));
    if (needed > available) throw refusal(said, "use a smaller train.micro_batch, or train.recompute=loop");
    if (run_.device.is_cpu() && run_.config.checkpoint.background) {
      const int64_t copy = snapshot_bytes(run_.config.model);
      said += needed + copy <= available
                  ? fmt::format("; {} more to save in the background", shown(copy))
                  : fmt::format("; training will wait for checkpoints: {} for saving in the background do not fit",
                                shown(copy));
    }
    return said;
  }

  std::string batch() {
    if (micro_batch_ == 0) return "";
    run_.batch = batch_plan(run_.config.train, micro_batch_);
    return fmt::format("{} tokens a step (micro_batch {} x {} tokens x grad_accum {}), {} steps",
                       with_commas(run_.batch.global_batch_tokens), micro_batch_,
                       with_commas(run_.config.train.seq_len), run_.batch.grad_accum, with_commas(run_.batch.steps));
  }

  // As a start looks at it.
  void disk() {
    if (!run_.store || run_.batch.steps == 0) return;
    Preflight preflight(false);
    look_at_disk(preflight, run_, checkpoint_bytes(run_.config.model), false);
    for (const auto& row : preflight.rows()) {
      findings_.push_back({row.what, row.bad ? Mark::bad : Mark::good, row.said, row.hint});
    }
  }

  std::string write_test() {
    if (!run_.store) return "";
    const auto begin = Clock::now();
    if (run_.store->is_remote()) {
      run_.store->prepare();
      return fmt::format("a small object was written in {}, read back and removed in {:.1f} s",
                         run_.store->dir().string(), seconds_since(begin));
    }
    const fs::path there = nearest_existing(run_.store->dir());
    const int fd = ::open(there.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    const int error = errno;
    if (fd >= 0) ::close(fd);
    const bool no_such_files = fd < 0 && (error == EOPNOTSUPP || error == EISDIR || error == ENOENT);
    if (fd < 0 && (!no_such_files || ::access(there.c_str(), W_OK) != 0)) {
      throw refusal(fmt::format("{} cannot be written: {}", there.string(), std::strerror(error)),
                    "choose another checkpoint.dir");
    }
    return fmt::format("{} can be written", there.string());
  }

  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Run run_;
  int64_t micro_batch_ = 0;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings;
  findings.push_back(
      {"program", Mark::good, fmt::format("mythos {}, LibTorch {}", MYTHOS_VERSION, libtorch_version()), ""});
  findings.push_back({"processor", Mark::good,
                      fmt::format("{}, {} to use, {}", processor_name(), usable_cpus(), at::get_cpu_capability()), ""});
  findings.push_back({"memory", Mark::good,
                      fmt::format("{}, {} available now", shown(usable_memory()), shown(available_memory())), ""});
  findings.push_back(gpus());
  findings.push_back(disk_here());
  findings.push_back(temporary_space());
  findings.push_back(hub());
  findings.push_back(s3());
  findings.push_back(command("mpirun", "mpirun", "one process trains; several on the CPU need it",
                             "apt-get install openmpi-bin, then build again"));
  findings.push_back(
      command("aws", "aws", "mythos plan --check reads an account's quota with it", "apt-get install awscli"));
  return findings;
}

std::vector<Finding> examine_run(const fs::path& config, const std::vector<std::string>& overrides) {
  return Examination(config, overrides).all();
}

Json to_json(const std::vector<Finding>& findings) {
  Json checks = Json::array();
  bool ok = true;
  for (const Finding& f : findings) {
    ok = ok && f.mark != Mark::bad;
    const char* const mark = f.mark == Mark::good ? "ok" : f.mark == Mark::note ? "note" : "bad";
    checks.push_back({{"what", f.what}, {"mark", mark}, {"found", f.said}, {"advice", f.advice}});
  }
  return {{"ok", ok}, {"checks", checks}};
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& f : findings) {
    const char* const mark = f.mark == Mark::good ? "ok" : f.mark == Mark::note ? "-" : "BAD";
    text += fmt::format("{:<12} {:<4} {}\n", f.what, mark, f.said);
    if (!f.advice.empty()) text += fmt::format("{:<12} {:<4} {}\n", "", "", f.advice);
  }
  return text;
}

}  // namespace mythos
