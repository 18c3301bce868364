#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "train/run_page.h"

namespace mythos::cli {
namespace fs = std::filesystem;
namespace {

struct Options {
  fs::path run, out;
  bool json = false;
};

void run(const Options& o) {
  std::error_code ec;
  if (!fs::is_directory(o.run, ec)) throw usage_error(fmt::format("{} is no folder", o.run.string()), "give a run's");
  const std::string page = run_page(o.run);
  const fs::path out = o.out.empty() ? o.run / "report.html" : o.out;
  write_file_atomically(out, page);
  if (o.json) return print_json({{"path", out.string()}, {"bytes", page.size()}});
  print(fmt::format("{}: {}, open it in a browser\n", out.string(), bytes_text(static_cast<double>(page.size()))));
}

}  // namespace

void add_report(CLI::App& app, Result&) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("report", "A run as one self-contained page: curves, history, samples");
  command->add_option("RUN", o->run, "a run's folder, also of one that trains now")->required();
  command->add_option("--out", o->out, "the file to write (default: RUN/report.html)");
  command->add_flag("--json", o->json, "one JSON document on standard output");
  command->footer("Example:\n  mythos report runs/demo");
  command->callback([o] { run(*o); });
}

}  // namespace mythos::cli
