#include "plan/run_plan.h"

#include "base/error.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "plan/choices.h"
#include "storage/storage.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace mythos {
namespace {

int64_t loops_of(const RunConfig& c) { return *std::max_element(c.train.loops.begin(), c.train.loops.end()); }

double number_from(std::string_view text, std::string_view& rest) {
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return -1;
  rest = text.substr(static_cast<size_t>(end - text.data()));
  return value;
}

// Text as it is published, compressed: FineWeb-Edu's sample of 10 billion tokens has 28.5 GB of Parquet files.
constexpr double network_bytes_per_token = 2.85;

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : r_(request), config_(request.config) {}

  RunPlan make() {
    plan_.title = r_.title;
    plan_.parameters = parameters_by_part(config_.model);
    plan_.flops = flops_per_token(config_.model, config_.train.seq_len, config_.train.loops);
    find_target();
    find_price();
    settle_batch();
    settle_memory();
    settle_speed();
    settle_disk();
    look_at_instance();
    if (r_.compare) plan_.choices = compare_instances(plan_, r_.catalogue, r_.region, r_.config, pace_mfu());
    add_changes();
    judge();
    spread();
    return std::move(plan_);
  }

 private:
  void find_target() {
    if (!r_.instance.empty()) {
      instance_ = &r_.catalogue.instance(r_.instance);
      gpu_ = &r_.catalogue.supported_gpu(instance_->gpu);
      if (!r_.gpu.empty() && &r_.catalogue.gpu(r_.gpu) != gpu_) {
        throw usage_error(fmt::format("{} carries the GPU {}, not {}", instance_->name, gpu_->name, r_.gpu),
                          "leave --gpu out, or name another --instance");
      }
      plan_.target = fmt::format("{} ({} in {})", gpu_->name, instance_->name, r_.region);
    } else if (!r_.gpu.empty()) {
      gpu_ = &r_.catalogue.supported_gpu(r_.gpu);
      plan_.target = gpu_->name;
    } else {
      plan_.target = r_.device;
    }
    element_ = gpu_ != nullptr ? 2 : r_.element;
    limit_ = gpu_ != nullptr && !r_.measured ? gpu_->memory_bytes : r_.device_memory;
    plan_.memory_limit = limit_;
  }

  void find_price() {
    if (r_.price) {
      plan_.price = *r_.price;
      plan_.price_source = "as given";
    } else if (config_.cost.price_per_hour > 0) {
      plan_.price = config_.cost.price_per_hour;
      plan_.price_source = "cost.price_per_hour";
    } else if (instance_ != nullptr) {
      if (const auto price = instance_->price(r_.region)) {
        plan_.price = *price;
        plan_.price_source = fmt::format("{} on demand in {}, {}", instance_->name, r_.region, r_.catalogue.dated());
      } else {
        plan_.notes.push_back(fmt::format("the catalogue has no price for {} in {}: give one with --price-per-hour",
                                          instance_->name, r_.region));
      }
    }
  }

  void settle_batch() {
    const TrainSection& t = config_.train;
    int64_t n = t.micro_batch;
    if (r_.measured) {
      n = r_.measured->chosen.micro_batch;
      plan_.recompute = r_.measured->chosen.recompute;
      plan_.batch_why = r_.measured->why;
    } else {
      if (n == 0) {
        n = predicted_batch(config_, element_, limit_, most_rows(t));
        plan_.batch_why = fmt::format("micro_batch {} is the largest that is predicted to fit well", n);
      } else {
        plan_.batch_why = fmt::format("micro_batch {} is the configuration's", n);
      }
      plan_.recompute = recompute_for(config_, n, element_, limit_)
                            .value_or(t.recompute == "none" ? Recompute::none : Recompute::loop);
    }
    if (t.global_batch_tokens > 0 && n * t.seq_len > t.global_batch_tokens) {
      throw usage_error(
          fmt::format("micro_batch {} x seq_len {} is {} tokens, more than train.global_batch_tokens {}: that batch "
                      "cannot be reached",
                      n, with_commas(t.seq_len), with_commas(n * t.seq_len), with_commas(t.global_batch_tokens)),
          "lower train.micro_batch or raise train.global_batch_tokens");
    }
    plan_.batch = batch_plan(t, n);
  }

  void settle_memory() {
    const int64_t loops = loops_of(config_);
    const auto memory = [&](int64_t n, Recompute recompute) {
      MemoryPlan m = plan_memory(config_.model, n, config_.train.seq_len, loops, recompute, element_);
      if (gpu_ == nullptr && r_.on_cpu) m.snapshot = r_.snapshot_bytes;
      return m;
    };
    std::vector<int64_t> sizes(micro_batches().begin(), micro_batches().end());
    if (std::find(sizes.begin(), sizes.end(), plan_.batch.micro_batch) == sizes.end()) {
      sizes.push_back(plan_.batch.micro_batch);
      std::sort(sizes.begin(), sizes.end());
    }
    int64_t too_large = 0;
    for (const int64_t n : sizes) {
      if (n > std::max(most_rows(config_.train), plan_.batch.micro_batch) || too_large >= 2) break;
      bool any = false;
      for (const Recompute recompute : {Recompute::none, Recompute::loop}) {
        const MemoryPlan m = memory(n, recompute);
        plan_.rows.push_back({n, recompute, m.total(), fits(m, limit_)});
        any = any || fits(m, limit_);
      }
      if (!any && n > plan_.batch.micro_batch) ++too_large;
    }
    plan_.memory = memory(plan_.batch.micro_batch, plan_.recompute);
    plan_.memory_bytes = plan_.memory.total();
    plan_.fits = plan_.memory_bytes <= limit_;
    if (r_.measured && r_.measured->chosen.peak_bytes > 0) {
      plan_.measured_tensors = r_.measured->chosen.peak_bytes;
      const int64_t program = r_.measured_program > 0 ? r_.measured_program : plan_.memory.program;
      plan_.memory_bytes = plan_.measured_tensors + program + plan_.memory.snapshot;
      plan_.fits = true;
    }
    if (!plan_.fits) {
      plan_.notes.push_back(fmt::format("micro_batch {} does not fit: {} needed, {} there", plan_.batch.micro_batch,
                                        bytes_text(static_cast<double>(plan_.memory_bytes)),
                                        bytes_text(static_cast<double>(limit_))));
    }
    plan_.cache_bytes = cache_bytes(config_.model, config_.train.seq_len, loops, element_);
  }

  // The share of a listed peak that is gone by.
  double pace_mfu() const { return r_.mfu.value_or(r_.catalogue.assumed().mfu); }

  Pace pace(double tokens_per_second) const {
    Pace p;
    p.tokens_per_second = tokens_per_second;
    p.mfu = plan_.peak > 0 ? tokens_per_second * plan_.flops.train / plan_.peak : 0;
    p.hours = static_cast<double>(plan_.batch.tokens()) / tokens_per_second / 3600;
    p.cost = p.hours * plan_.price;
    return p;
  }

  void settle_speed() {
    if (gpu_ != nullptr) {
      plan_.peak = gpu_->bf16_flops;
      plan_.peak_source =
          fmt::format("the data sheet's dense bf16 peak of the {}, {}FLOP/s", gpu_->name, si_text(plan_.peak));
    } else if (const Gpu* const listed = r_.on_cpu ? nullptr : r_.catalogue.gpu_of_device(r_.device);
               listed != nullptr) {
      plan_.peak = listed->bf16_flops;
      plan_.peak_source =
          fmt::format("the data sheet's dense bf16 peak of the {}, {}FLOP/s", listed->name, si_text(plan_.peak));
    } else {
      plan_.peak = r_.measured_peak;
      plan_.peak_source = fmt::format("matrix products measured on this device, {}FLOP/s", si_text(plan_.peak));
    }
    if (r_.measured) return measured_speed();
    const AssumedSpeed& assumed = r_.catalogue.assumed();
    double mfu = assumed.mfu, low = assumed.low, high = assumed.high;
    plan_.speed_source = fmt::format("{:.1f}% MFU assumed: {}", 100 * mfu, assumed.source);
    if (gpu_ == nullptr && r_.on_cpu) {
      mfu = 0.6, low = 0.4, high = 0.8;
      plan_.speed_source = "60% of the matrix products' rate assumed: training on CPUs reached 40% to 80%";
    }
    if (r_.mfu) {
      mfu = low = high = *r_.mfu;
      plan_.speed_source = fmt::format("{:.1f}% MFU, as given", 100 * mfu);
    }
    const double per_mfu = plan_.peak / plan_.flops.train;
    plan_.expected = pace(mfu * per_mfu);
    plan_.slow = pace(low * per_mfu);
    plan_.fast = pace(high * per_mfu);
    if (gpu_ != nullptr) plan_.reference = pace(r_.catalogue.reference().mfu * per_mfu);
  }

  void measured_speed() {
    plan_.measured = true;
    const Trial& t = r_.measured->chosen;
    const int64_t accum = plan_.batch.grad_accum;
    const double rate = t.tokens_per_second(config_.train.seq_len, accum);
    plan_.expected = pace(rate);
    const double around = std::max(0.05, 2 * t.deviation);
    plan_.fast = pace(rate * (1 + around));
    double slower = 1 - std::min(0.5, around);
    const double asked = mean_loops();
    if (t.loops_run > 0 && t.loops_run < asked - 0.05) {
      // Later in training fewer positions may halt so early.
      const double now = loops_train_flops(t.loops_run);
      slower *= now / loops_train_flops(asked);
      plan_.notes.push_back(fmt::format(
          "with fresh weights every position halted after {:.1f} of {:g} loops; if all run, it is {:.0f}% slower",
          t.loops_run, asked, 100 * (1 - now / loops_train_flops(asked))));
    }
    plan_.slow = pace(rate * slower);
    plan_.speed_source =
        fmt::format("measured here: {:.3g} s a micro-step, {:.3g} s an update", t.micro_seconds, t.update_seconds);
  }

  double mean_loops() const {
    double sum = 0;
    for (const int64_t n : config_.train.loops) sum += static_cast<double>(n);
    return sum / static_cast<double>(config_.train.loops.size());
  }
  double loops_train_flops(double loops) const {
    const double one = flops_per_token(config_.model, config_.train.seq_len, 1).train;
    return one + (loops - 1) * (flops_per_token(config_.model, config_.train.seq_len, 2).train - one);
  }

  void settle_disk() {
    const CheckpointSection& c = config_.checkpoint;
    plan_.checkpoint_bytes = r_.checkpoint_bytes;
    plan_.checkpoints_at_once = plan_.batch.steps > 0
                                    ? checkpoints_at_once(c.keep_last, c.keep_every, c.every, plan_.batch.steps)
                                    : std::max(c.keep_last, least_kept) + 1;
    plan_.disk_needed = plan_.checkpoints_at_once * r_.checkpoint_bytes;
    if (instance_ == nullptr && gpu_ == nullptr) plan_.disk_free = r_.disk_free;
    if (plan_.disk_free && *plan_.disk_free < plan_.disk_needed) {
      plan_.notes.push_back(fmt::format("a bigger disk: {} free, {} needed for {} checkpoints at once",
                                        bytes_text(static_cast<double>(*plan_.disk_free)),
                                        bytes_text(static_cast<double>(plan_.disk_needed)), plan_.checkpoints_at_once));
    }
    const auto& sources = config_.data.source;
    if (std::any_of(sources.begin(), sources.end(), [](const std::string& s) { return is_address(s); })) {
      plan_.network_bytes = network_bytes_per_token * static_cast<double>(plan_.batch.tokens());
    }
  }

  void look_at_instance() {
    if (instance_ == nullptr) return;
    for (std::string& note : instance_notes(plan_, *instance_, r_.region)) plan_.notes.push_back(std::move(note));
    plan_.use.work = fmt::format("{} parameters ({}), {}tokens, {}FLOP", with_commas(plan_.parameters.total()),
                                 "a looped transformer with a mixture of experts",
                                 si_text(static_cast<double>(plan_.batch.tokens())), si_text(plan_.total_flops()));
    plan_.use.hours = plan_.expected.hours;
    plan_.use.dollars = plan_.expected.cost;
    plan_.quota = advise_quota(r_.quotas, *instance_, r_.region, r_.spot);
  }

  void add_changes() {
    if (r_.measured) {
      const double now = plan_.expected.tokens_per_second;
      for (const Trial& t : r_.measured->trials) {
        if (t.out_of_memory || t.micro_batch == plan_.batch.micro_batch) continue;
        const int64_t accum = batch_plan(config_.train, t.micro_batch).grad_accum;
        const double gain = t.tokens_per_second(config_.train.seq_len, accum) / now - 1;
        plan_.changes.push_back(
            {fmt::format("micro_batch {} -> {}: {:.0f}% {}, fits ({} of tensors), measured", plan_.batch.micro_batch,
                         t.micro_batch, 100 * std::abs(gain), gain < 0 ? "slower" : "faster",
                         bytes_text(static_cast<double>(t.peak_bytes))),
             1 - 1 / (1 + gain)});
      }
    }
    recompute_change();
    if (gpu_ != nullptr && !r_.mfu) {
      plan_.changes.push_back(
          {fmt::format("measuring on the card itself (mythos plan --measure there): the range is {} to {}",
                       duration_text(plan_.fast.hours * 3600), duration_text(plan_.slow.hours * 3600)),
           1 - plan_.fast.hours / std::max(1e-9, plan_.expected.hours)});
    }
    if (instance_ != nullptr) {
      for (Change& c : cheaper_instances(plan_, *instance_, r_.catalogue, r_.region))
        plan_.changes.push_back(std::move(c));
    }
    std::stable_sort(plan_.changes.begin(), plan_.changes.end(),
                     [](const Change& a, const Change& b) { return a.gain > b.gain; });
  }

  // Recomputing costs one more forward pass of the loops.
  void recompute_change() {
    const double again = plan_.flops.loops + plan_.flops.attention * static_cast<double>(loops_of(config_)) /
                                                 static_cast<double>(loops_of(config_) + config_.model.prelude_layers +
                                                                     config_.model.coda_layers);
    const double share = again / plan_.flops.train;
    for (const MemoryRow& row : plan_.rows) {
      if (row.micro_batch != plan_.batch.micro_batch || row.recompute == plan_.recompute) continue;
      if (plan_.recompute == Recompute::loop) {
        plan_.changes.push_back(
            {fmt::format("recompute off: about {:.0f}% faster, {} ({} needed), from FLOPs", 100 * share,
                         row.fits ? "fits" : "does not fit", bytes_text(static_cast<double>(row.bytes))),
             row.fits ? share / (1 + share) : 0});
      } else {
        plan_.changes.push_back({fmt::format("recompute on: about {:.0f}% slower, {} instead of {}, from FLOPs",
                                             100 * share / (1 + share), bytes_text(static_cast<double>(row.bytes)),
                                             bytes_text(static_cast<double>(plan_.memory.total()))),
                                 -share});
      }
    }
  }

  void judge() {
    if (r_.deadline_hours && plan_.batch.steps > 0) {
      judge_target(plan_, "deadline", *r_.deadline_hours, *r_.deadline_hours, r_.catalogue, r_.region);
    }
    if (!r_.budget) return;
    if (plan_.price <= 0) {
      throw usage_error("--budget needs a price",
                        "add --price-per-hour, or an --instance with a price in this --region");
    }
    if (plan_.batch.steps > 0)
      judge_target(plan_, "budget", *r_.budget, *r_.budget / plan_.price, r_.catalogue, r_.region);
  }

  void spread() {
    if (r_.gpus.empty()) return;
    const Gpu& gpu = planned_gpu(r_);
    ByGpusRequest many;
    many.config = config_;
    many.counts = r_.gpus;
    many.micro_batch = plan_.batch.micro_batch;
    many.recompute = plan_.recompute;
    many.element = element_;
    many.memory = limit_;
    many.tokens_per_second = plan_.expected.tokens_per_second;
    many.speed_source = plan_.speed_source;
    many.interconnect.link = gpu.link;
    if (instance_ != nullptr) {
      many.interconnect.gpus_per_machine = instance_->gpus;
      many.interconnect.network = instance_->network;
    }
    if (r_.network) many.interconnect.network = *r_.network;
    many.price = plan_.price;
    many.price_of_machine = instance_ != nullptr;
    plan_.by_gpus = plan_by_gpus(gpu.name, many);
  }

  const PlanRequest& r_;
  const RunConfig& config_;
  RunPlan plan_;
  const Gpu* gpu_ = nullptr;
  const Instance* instance_ = nullptr;
  int64_t element_ = 4, limit_ = 0;
};

}  // namespace

const Gpu& planned_gpu(const PlanRequest& r) {
  if (!r.instance.empty()) return r.catalogue.supported_gpu(r.catalogue.instance(r.instance).gpu);
  if (!r.gpu.empty()) return r.catalogue.supported_gpu(r.gpu);
  const Gpu* const here = r.on_cpu ? nullptr : r.catalogue.gpu_of_device(r.device);
  if (here == nullptr) {
    throw usage_error(fmt::format("--gpus needs a GPU of the catalogue, and {} is none", r.device),
                      "add --gpu NAME or --instance NAME");
  }
  return *here;
}

int64_t most_rows(const TrainSection& t) {
  return t.global_batch_tokens > 0 ? std::max<int64_t>(1, t.global_batch_tokens / t.seq_len) : 8;
}

std::optional<Recompute> recompute_for(const RunConfig& c, int64_t n, int64_t element, int64_t memory) {
  const auto fit = [&](Recompute r) {
    return fits(plan_memory(c.model, n, c.train.seq_len, loops_of(c), r, element), memory);
  };
  if (c.train.recompute != "loop" && fit(Recompute::none)) return Recompute::none;
  if (c.train.recompute != "none" && fit(Recompute::loop)) return Recompute::loop;
  return std::nullopt;
}

int64_t predicted_batch(const RunConfig& config, int64_t element, int64_t memory, int64_t most) {
  int64_t without = 0, with = 1;
  for (const int64_t n : micro_batches()) {
    if (n > most) break;
    const auto recompute = recompute_for(config, n, element, memory);
    if (!recompute) break;
    with = n;
    if (*recompute == Recompute::none) without = n;
  }
  return without > 0 ? without : with;
}

double hours_from(const std::string& text, const char* option) {
  std::string_view rest;
  const double value = number_from(text, rest);
  const double unit = rest.empty() || rest == "h"    ? 1
                      : rest == "d"                  ? 24
                      : rest == "min" || rest == "m" ? 1.0 / 60
                      : rest == "s"                  ? 1.0 / 3600
                                                     : 0;
  if (!(value > 0) || unit == 0)
    throw usage_error(fmt::format("{} is '{}', it must be a time like 12h, 3d or 90min", option, text));
  return value * unit;
}

double fraction_from(const std::string& text, const char* option) {
  std::string_view rest;
  double value = number_from(text, rest);
  if (rest == "%") value /= 100;
  if (!(value > 0 && value <= 1) || (!rest.empty() && rest != "%")) {
    throw usage_error(fmt::format("{} is '{}', it must be a share of the peak like 44% or 0.44", option, text));
  }
  return value;
}

RunPlan make_plan(const PlanRequest& request) { return Planner(request).make(); }

}  // namespace mythos
