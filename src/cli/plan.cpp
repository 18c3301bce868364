#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "data/tokenizer_source.h"
#include "kernels/device.h"
#include "kernels/memory.h"
#include "plan/roofline.h"
#include "plan/run_plan.h"
#include "step/gemm_rate.h"
#include "storage/storage.h"
#include "train/run_parts.h"
#include "train/saver.h"

#include <algorithm>

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string config, gpu, instance, region = "us-east-1", mfu, deadline, gpus;
  fs::path hardware;
  std::vector<std::string> overrides;
  std::optional<double> price, budget, network;
  int64_t measure = -1;  // not said
  double seconds = 60;
  bool compare = false, spot = false, check = false, roofline = false, json = false;
};

bool all_local(const std::vector<std::string>& sources) {
  return std::none_of(sources.begin(), sources.end(), [](const std::string& s) { return is_address(s); });
}

// The run's own rows where its tokenizer and text are here; `why` says why not.
class LocalRows {
 public:
  LocalRows(RunConfig& config, std::string& why) {
    if (config.tokenizer.path.empty() || is_address(config.tokenizer.path)) {
      why = config.tokenizer.path.empty() ? "no tokenizer is named" : "the tokenizer is not here";
      return;
    }
    try {
      options_ = data_options(config);
      tokenizer_ = open_tokenizer(config, options_);
    } catch (const Error& e) {
      why = e.what();
      tokenizer_.reset();
    }
    if (tokenizer_ &&
        (config.data.source.empty() || !all_local(config.data.source) || !all_local(config.data.validation_source))) {
      why = "the text is not here";
    }
    reads_ = why.empty();
  }
  /// Whether the vocabulary is the tokenizer's.
  [[nodiscard]] bool has_tokenizer() const { return tokenizer_.has_value(); }
  /// The loader is opened when the first row is asked for. Nothing where there are no rows to be had.
  std::function<bool(std::span<int32_t>)> reader(std::string& why) {
    if (!reads_) return {};
    try {
      loader_ = std::make_unique<RowLoader>(open_sources(options_), options_, encoder_of(*tokenizer_));
      return [this](std::span<int32_t> row) { return loader_->next(row); };
    } catch (const Error& e) {
      why = e.what();
      return {};
    }
  }

 private:
  DataOptions options_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<RowLoader> loader_;
  bool reads_ = false;
};

// Free space where checkpoints go, and what those of the run's own take there already.
std::optional<int64_t> free_at(const std::string& folder) {
  if (is_address(folder)) return std::nullopt;
  std::error_code ec;
  int64_t own = 0;
  for (const auto& file : fs::directory_iterator(folder, ec)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("step_") && name.ends_with(".safetensors")) own += static_cast<int64_t>(file.file_size(ec));
  }
  const auto space = space_at(folder);
  return space ? std::optional(static_cast<int64_t>(space->available) + own) : std::nullopt;
}

// Fills in what is here: the device, and what is measured on it.
void look_here(PlanRequest& request, const Options& o, LocalRows& rows, std::string why) {
  RunConfig& config = request.config;
  const at::Device device = choose_device(config.train.device);
  const at::ScalarType compute = choose_dtype(config.train.dtype, device);
  request.device = device_name(device);
  request.element = compute == at::kBFloat16 ? 2 : 4;
  request.on_cpu = device.is_cpu();
  request.device_memory = free_memory(device);
  if (!request.gpus.empty()) (void)planned_gpu(request);  // nothing is measured in vain
  request.disk_free = free_at(config.checkpoint.dir);
  const TrainSection& t = config.train;
  const int64_t loops = *std::max_element(t.loops.begin(), t.loops.end());
  const int64_t fixed = t.micro_batch > 0 ? t.micro_batch : 1;
  if (t.global_batch_tokens > 0 && fixed * t.seq_len > t.global_batch_tokens) return;  // make_plan says what is wrong
  if (device.is_cpu() && config.checkpoint.background) request.snapshot_bytes = snapshot_bytes(config.model);
  GemmRate rate(gemm_shapes(config.model, fixed * t.seq_len, loops, device.type()), device, compute);
  rate.round(1.5);
  request.measured_peak = rate.best();
  if (o.measure == 0) return;
  const SearchLimits limits{
      .most_rows = most_rows(t),
      .seconds = o.seconds,
      .gain = 0.03,
      .grad_accum = [&](int64_t n) { return batch_plan(t, n).grad_accum; },
      .recompute = [&](int64_t n) { return recompute_for(config, n, request.element, request.device_memory); }};
  if (!limits.recompute(fixed) && device.is_cpu()) {
    log::warn("nothing is measured: micro_batch {} is predicted not to fit into {}", fixed,
              bytes_text(static_cast<double>(request.device_memory)));
    return;
  }
  MeasureOptions m;
  m.model = config.model;
  m.device = device;
  m.compute = compute;
  m.seq_len = t.seq_len;
  m.loops = t.loops;
  m.seed = static_cast<uint64_t>(t.seed);
  m.micro_steps = o.measure > 0 ? o.measure : 3;
  m.next_row = rows.reader(why);
  m.say = [](const std::string& what) {
    stop_if_asked("stopped");
    log::info("{}", what);
  };
  if (!m.next_row) log::info("random token ids stand for the text: {}", why);
  const int64_t before = resident_bytes();
  Measurer measurer(std::move(m));
  request.measured = t.micro_batch > 0 ? try_batch(measurer, t.micro_batch, limits) : search_batch(measurer, limits);
  if (device.is_cpu()) request.measured_program = std::max(before, peak_resident_bytes() - memory_use().held);
  // Where there is time for it: one size more, to say what it would change.
  if (t.micro_batch > 0) {
    const double unit =
        request.measured->trials.back().seconds / static_cast<double>(request.measured->chosen.micro_batch);
    for (const int64_t n : micro_batches()) {
      if (n <= t.micro_batch || n > limits.most_rows || !limits.recompute(n)) continue;
      if (unit * static_cast<double>(n) < o.seconds / 2)
        request.measured->trials.push_back(measurer.measure(n, *limits.recompute(n)));
      break;
    }
  }
}

void run(const Options& o) {
  PlanRequest request;
  request.title = fs::path(o.config).filename().string();
  request.catalogue = Catalogue::load(o.hardware);
  request.quotas = QuotaBook::built_in();
  request.config = load_config(o.config, o.overrides);
  request.gpu = o.gpu;
  request.instance = o.instance;
  request.region = request.catalogue.region(o.region);
  request.spot = o.spot;
  request.price = o.price;
  request.budget = o.budget;
  request.compare = o.compare;
  if (!o.gpus.empty()) request.gpus = gpu_counts_from(o.gpus, "--gpus");
  request.network = o.network;
  if (o.network && request.gpus.empty()) throw usage_error("--network-gbit-s is for --gpus", "add --gpus 1,8,64");
  if (!o.mfu.empty())
    request.mfu = o.mfu == "reference" ? request.catalogue.reference().mfu : fraction_from(o.mfu, "--mfu");
  if (!o.deadline.empty()) request.deadline_hours = hours_from(o.deadline, "--deadline");
  if (!o.gpu.empty()) (void)request.catalogue.supported_gpu(o.gpu);
  if (!o.instance.empty()) (void)request.catalogue.supported_gpu(request.catalogue.instance(o.instance).gpu);
  if (o.check && o.instance.empty()) throw usage_error("--check needs an --instance, to know which quota to read");
  const int64_t threads = request.config.train.threads;
  set_threads(threads);
  std::string why;
  LocalRows rows(request.config, why);
  request.checkpoint_bytes = checkpoint_bytes(request.config.model);
  // A card by name is planned from the catalogue, unless it is the one that is here.
  const bool elsewhere = !o.gpu.empty() || !o.instance.empty() || (o.compare && o.measure < 1);
  if (!elsewhere) {
    look_here(request, o, rows, why);
  } else if (o.gpu.empty() && o.instance.empty()) {
    request.gpu = "L40S";  // what machines are compared with
  }
  RunPlan plan = make_plan(request);
  if (!request.config.vocab_size && !rows.has_tokenizer()) {
    plan.notes.push_back(fmt::format("the vocabulary is the preset's {}; training takes the tokenizer's",
                                     with_commas(request.config.model.vocab_size)));
  }
  if (o.check) {
    if (!plan.quota) throw usage_error(fmt::format("{} needs no quota that is known here", o.instance));
    plan.quota->present = present_quota(plan.quota->quota, request.region);
  }
  std::optional<Roofline> limits;
  if (o.roofline) {
    limits = roofline(planned_gpu(request), {.model = request.config.model,
                                             .seq_len = request.config.train.seq_len,
                                             .micro_batch = plan.batch.micro_batch,
                                             .grad_accum = plan.batch.grad_accum,
                                             .loops = std::ranges::max(request.config.train.loops),
                                             .recompute = plan.recompute,
                                             .assumed = {}});
  }
  if (o.json) {
    Json json = to_json(plan);
    if (limits) json["roofline"] = roofline_json(*limits);
    print_json(json);
  } else {
    print(plan_text(plan) + (limits ? "\n" + roofline_text(*limits) : ""));
  }
  if (plan.disk_free && *plan.disk_free < plan.disk_needed) {
    throw refusal(
        fmt::format("{} has {} free and the checkpoints need {} ({} x {} bytes)", request.config.checkpoint.dir,
                    bytes_text(static_cast<double>(*plan.disk_free)), bytes_text(static_cast<double>(plan.disk_needed)),
                    plan.checkpoints_at_once, with_commas(plan.checkpoint_bytes)),
        "free space, choose another checkpoint.dir, or lower checkpoint.keep_last");
  }
}

}  // namespace

void add_plan(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("plan", "What a run takes, before it is begun: batch, memory, time, money, disk, quota");
  command->add_option("CONFIG", o->config, "configuration file (docs/config.md lists its keys)")->required();
  add_overrides(*command, o->overrides);
  command
      ->add_option("--measure", o->measure,
                   "micro-steps to time on the device that is here; 0: none (default: 3 without --gpu and --instance)")
      ->check(CLI::Range(int64_t{0}, int64_t{10000}))
      ->type_name("N");
  command->add_option("--seconds", o->seconds, "about the most that measuring may take")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_option("--gpu", o->gpu, "an estimate for this GPU of the catalogue (l40s, a100-80gb, rtx4090)");
  command->add_option("--instance", o->instance, "an estimate for this machine (g6e.8xlarge): also price, disk, quota");
  command->add_option("--region", o->region, "where prices and quotas are looked up")->capture_default_str();
  command->add_flag("--spot", o->spot, "the quota of Spot machines");
  command->add_option("--mfu", o->mfu, "the share of the GPU's peak to assume: 44%, 0.44, or reference");
  command
      ->add_option_function<double>(
          "--price-per-hour",
          [o](const double& x) {
            if (!(x >= 0 && x <= 1e6))
              throw usage_error(fmt::format("--price-per-hour is {}, it must be dollars, 0 or more", x));
            o->price = x;
          },
          "dollars an hour, instead of the catalogue's")
      ->type_name("DOLLARS");
  command
      ->add_option_function<double>(
          "--budget",
          [o](const double& x) {
            if (!(x > 0 && x <= 1e12))
              throw usage_error(fmt::format("--budget is {}, it must be dollars, more than 0", x));
            o->budget = x;
          },
          "whether this many dollars are enough, and what would make it so")
      ->type_name("DOLLARS");
  command->add_option("--deadline", o->deadline,
                      "whether it is done in this time (12h, 3d), and what would make it so");
  command
      ->add_option_function<std::string>(
          "--gpus",
          [o](const std::string& text) {
            (void)gpu_counts_from(text, "--gpus");
            o->gpus = text;
          },
          "how it would go on so many GPUs: batch, memory, traffic, time and cost of each number")
      ->type_name("N,N,...");
  command
      ->add_option_function<double>(
          "--network-gbit-s",
          [o](const double& x) {
            if (!(x > 0 && x <= 1e6))
              throw usage_error(fmt::format("--network-gbit-s is {}, it must be Gbit/s, more than 0", x));
            o->network = x * 1e9 / 8;
          },
          "what a machine sends to others, for --gpus, instead of the catalogue's")
      ->type_name("X");
  command->add_flag("--roofline", o->roofline, "what limits a micro-step on the GPU, part by part: an estimate");
  command->add_flag("--compare", o->compare, "rank the catalogue's machines by cost");
  command->add_flag("--check", o->check, "read the account's present quota with the aws command; nothing is requested");
  command->add_option("--hardware", o->hardware, "a catalogue of your own, laid over the built-in one (docs/plan.md)");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Examples:\n  mythos plan configs/mythos_300m.toml                                    measures on this machine\n"
      "  mythos plan configs/mythos_300m.toml --instance g6e.8xlarge --deadline 12h    from the catalogue\n"
      "  mythos plan configs/mythos_300m.toml --instance p5.48xlarge --gpus 1,8,64,512     on many GPUs\n"
      "  mythos plan configs/mythos_300m.toml --gpu l40s --mfu reference --price-per-hour 5");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
