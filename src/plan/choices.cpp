#include "plan/choices.h"

#include "base/units.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace mythos {
namespace {

std::string shown(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
std::string time_text(double hours) { return duration_text(hours * 3600); }

// What a host holds beside the GPU: a copy to write checkpoints from, the program, the data on its way.
int64_t host_needed(const RunPlan& plan) { return plan.checkpoint_bytes + (int64_t{4} << 30); }

// A root volume: the checkpoints, a tenth, and what an image takes is not known.
int64_t volume_gib(const RunPlan& plan) {
  return static_cast<int64_t>(std::ceil(1.1 * static_cast<double>(plan.disk_needed) / 1073741824.0)) + 20;
}

}  // namespace

std::vector<Choice> compare_instances(const RunPlan& plan, const Catalogue& catalogue, const std::string& region,
                                      const RunConfig& config, double mfu) {
  std::vector<Choice> choices;
  for (const Instance& i : catalogue.instances()) {
    const Gpu& gpu = catalogue.gpu(i.gpu);
    const auto price = i.price(region);
    if (!gpu.unsupported.empty() || !price) continue;
    Choice c;
    c.instance = i;
    c.price = *price;
    c.fits = recompute_for(config, config.train.micro_batch > 0 ? config.train.micro_batch : 1, 2, gpu.memory_bytes)
                 .has_value() &&
             i.memory_bytes >= host_needed(plan);
    c.hours = plan.total_flops() / (mfu * gpu.bf16_flops) / 3600;
    c.cost = c.hours * c.price;
    choices.push_back(std::move(c));
  }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.fits != b.fits ? a.fits : a.cost != b.cost ? a.cost < b.cost : a.hours < b.hours;
  });
  return choices;
}

std::vector<Change> cheaper_instances(const RunPlan& plan, const Instance& instance, const Catalogue& catalogue,
                                      const std::string& region) {
  std::vector<Change> changes;
  const auto own = instance.price(region);
  if (!own) return changes;
  for (const Instance& i : catalogue.instances()) {
    const auto price = i.price(region);
    if (i.gpu != instance.gpu || !price || *price >= *own || i.memory_bytes < host_needed(plan)) continue;
    const double gain = 1 - *price / *own;
    changes.push_back(
        {fmt::format("{} carries the same {} with {} vCPUs for ${:.2f}/h instead of ${:.2f}: {:.0f}% cheaper{}", i.name,
                     i.gpu, i.vcpus, *price, *own, 100 * gain,
                     i.vcpus <= 8 ? fmt::format(", and within a quota of {}", i.vcpus) : ""),
         gain});
  }
  return changes;
}

std::vector<std::string> instance_notes(const RunPlan& plan, const Instance& i, const std::string& region) {
  std::vector<std::string> notes;
  if (i.gpus > 1) notes.push_back(fmt::format("{} has {} GPUs; one process trains on one of them", i.name, i.gpus));
  if (i.memory_bytes < host_needed(plan)) {
    notes.push_back(fmt::format("{} has {} of host memory, about {} are needed", i.name, shown(i.memory_bytes),
                                shown(host_needed(plan))));
  }
  notes.push_back(fmt::format(
      "disk of {}: an image's root volume may have 8 GiB; the checkpoints need {} ({} x {}): ask for a root volume of "
      "{} GiB beside what the image takes, or let checkpoint.dir be s3://...",
      i.name, shown(plan.disk_needed), plan.checkpoints_at_once, shown(plan.checkpoint_bytes), volume_gib(plan)));
  if (i.local_disk_bytes > 0) {
    notes.push_back(fmt::format(
        "{} brings {} of local NVMe at no further price, {} for the checkpoints and easily left unused; it is empty "
        "after the machine "
        "stops: copy the last checkpoint away",
        i.name, shown(i.local_disk_bytes), i.local_disk_bytes >= plan.disk_needed ? "enough" : "not enough"));
  }
  (void)region;
  return notes;
}

void judge_target(RunPlan& plan, const std::string& name, double asked, double hours, const Catalogue& catalogue,
                  const std::string& region) {
  const bool possible = plan.expected.hours <= hours;
  const bool sure = plan.slow.hours <= hours;
  const double needed = plan.peak > 0 ? plan.total_flops() / (hours * 3600 * plan.peak) : 0;
  const std::string what = name == "budget" ? fmt::format("${:g} buy {}", asked, time_text(hours))
                                            : fmt::format("the deadline is {}", time_text(hours));
  std::string text = fmt::format("{}: {}; {} expected", what,
                                 sure       ? "possible"
                                 : possible ? "possible, not sure"
                                            : "not possible as planned",
                                 time_text(plan.expected.hours));
  Json json = {{"asked", asked}, {"hours_allowed", hours}, {"possible", possible}, {"sure", sure}};
  if (plan.peak > 0) {
    json["mfu_needed"] = needed;
    text += needed <= 1
                ? fmt::format("; it becomes true at {:.0f}% MFU (now {:.1f}%)", 100 * needed, 100 * plan.expected.mfu)
                : "; not even at this device's full peak";
  }
  const auto tokens = static_cast<int64_t>(plan.expected.tokens_per_second * hours * 3600);
  json["tokens_possible"] = tokens;
  if (!possible) {
    text += fmt::format("; at the expected pace {}tokens fit", si_text(static_cast<double>(tokens)));
    // Machines that would keep it at the same share of their peak.
    std::vector<std::pair<double, std::string>> keep;
    if (!plan.measured && plan.expected.mfu > 0) {
      for (const Instance& i : catalogue.instances()) {
        const Gpu& gpu = catalogue.gpu(i.gpu);
        const auto price = i.price(region);
        if (!gpu.unsupported.empty() || !price) continue;
        const double there = plan.total_flops() / (plan.expected.mfu * gpu.bf16_flops) / 3600;
        if (name == "budget" ? there * *price <= asked : there <= hours) keep.emplace_back(there * *price, i.name);
      }
    }
    std::sort(keep.begin(), keep.end());
    if (keep.size() > 3) keep.resize(3);
    std::vector<std::string> names;
    for (const auto& [cost, machine] : keep) names.push_back(fmt::format("{} (${:.0f})", machine, cost));
    if (!names.empty()) text += fmt::format("; at the same MFU it would be kept by {}", fmt::join(names, ", "));
    json["kept_by"] = Json::array();
    for (const auto& [cost, machine] : keep) json["kept_by"].push_back(machine);
  }
  plan.verdicts.push_back(std::move(text));
  plan.targets[name] = std::move(json);
}

}  // namespace mythos
