#include "train/doctor.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"

#include <algorithm>

namespace mythos::cli {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

void run(const Options& o, Result& result) {
  std::vector<Finding> findings = examine_machine();
  if (!o.config.empty()) {
    for (Finding& f : examine_run(o.config, o.overrides)) findings.push_back(std::move(f));
  }
  const auto bad = std::ranges::count(findings, Finding::Mark::bad, &Finding::mark);
  if (bad > 0) result.exit_code = 1;
  if (o.json) return print_json(to_json(findings));
  const std::string of = o.config.empty() ? "" : " for " + o.config;
  print(findings_text(findings) +
        (bad > 0 ? fmt::format("{} of {} things are not as they must be{}\n", bad, findings.size(), of)
                 : fmt::format("nothing is missing{}\n", of)));
}

}  // namespace

void add_doctor(CLI::App& app, Result& result) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("doctor", "What this machine has for a run, and what is missing");
  command->add_option("CONFIG", o->config, "also all that a run of this configuration needs: its data is contacted");
  add_overrides(*command, o->overrides);
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer(
      "Exit code 1 if something would keep a run from training. Nothing is trained or left behind.\n"
      "Examples:\n  mythos doctor\n  mythos doctor configs/mythos_300m.toml --set checkpoint.dir=s3://bucket/run");
  command->callback([o, &result] { run(*o, result); });
}

}  // namespace mythos::cli
