// The machines of the catalogue beside each other for one run, and whether a deadline or a budget can be kept.
#pragma once

#include "plan/run_plan.h"

namespace mythos {

/// Every machine with a price in the region and a GPU that can train, with this run on one GPU at `mfu` of its peak;
/// the cheapest first, machines where it does not fit last.
std::vector<Choice> compare_instances(const RunPlan& plan, const Catalogue& catalogue, const std::string& region,
                                      const RunConfig& config, double mfu);
/// Machines with the same GPU for less.
std::vector<Change> cheaper_instances(const RunPlan& plan, const Instance& instance, const Catalogue& catalogue,
                                      const std::string& region);
/// What there is to know of a machine: host memory, idle GPUs, root volume, local disk.
std::vector<std::string> instance_notes(const RunPlan& plan, const Instance& instance, const std::string& region);
/// Says in plan.verdicts and plan.targets whether `hours` are enough, and what would make it so. `name`: "deadline" or
/// "budget", `asked` in its own unit.
void judge_target(RunPlan& plan, const std::string& name, double asked, double hours, const Catalogue& catalogue,
                  const std::string& region);

}  // namespace mythos
