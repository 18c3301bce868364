#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/units.h"
#include "cli/commands.h"
#include "kernels/memory.h"
#include "storage/byte_source.h"

#include <clocale>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr const char* intro =
    "mythos pretrains OpenMythos looped language models: plan, stream, train, survive, evaluate, generate.";

// CLI11's own message names the unknown word; the nearest command is added here.
std::string with_suggestion(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string message = error.what();
  const CLI::App* sub = &app;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string> names;
    for (const auto* s : sub->get_subcommands({})) names.push_back(s->get_name());
    if (names.empty() || argv[i][0] == '-') break;
    const auto found = std::find(names.begin(), names.end(), argv[i]);
    if (found == names.end()) {
      return fmt::format("there is no command '{}' ({})", argv[i], mythos::suggestion(argv[i], names));
    }
    sub = sub->get_subcommand(*found);
  }
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    std::vector<std::string> known;
    bool found = false;
    for (const auto* option : sub->get_options()) {
      for (const auto& l : option->get_lnames()) {
        known.push_back("--" + l);
        found = found || l == name;
      }
    }
    if (!found) return fmt::format("there is no option '--{}' here ({})", name, mythos::suggestion("--" + name, known));
  }
  return message;
}

}  // namespace

int main(int argc, char** argv) {
  using mythos::ExitCode;
  mythos::install_stop_handlers();
  mythos::keep_tensor_memory();
  CLI::App app(intro, "mythos");
  app.require_subcommand(1);
  app.set_version_flag("--version", "mythos " MYTHOS_VERSION);
  app.footer(
      "'mythos COMMAND --help' explains a command. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration,\n"
      "3 refused beforehand, 128+n stopped by signal n after saving.");
  mythos::cli::Result result;
  mythos::cli::add_doctor(app, result);
  mythos::cli::add_plan(app, result);
  mythos::cli::add_train(app, result);
  mythos::cli::add_eval(app, result);
  mythos::cli::add_generate(app, result);
  mythos::cli::add_tokenizer(app, result);
  mythos::cli::add_data(app, result);
  mythos::cli::add_inspect(app, result);
  mythos::cli::add_report(app, result);
  mythos::cli::add_convert(app, result);
  mythos::cli::add_bench(app, result);
  try {
    app.parse(argc, argv);
    return result.exit_code;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // help and version
    mythos::log::error("{}", with_suggestion(app, e, argc, argv));
    return static_cast<int>(ExitCode::usage);
  } catch (const mythos::Stopped& e) {
    mythos::log::live_line("");
    mythos::log::error("{}", e.line());
    const int number = mythos::stop_signal();
    return number > 0 ? 128 + number : static_cast<int>(ExitCode::failed);
  } catch (const mythos::Error& e) {
    mythos::log::live_line("");
    mythos::log::error("{}", e.line());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    mythos::log::live_line("");
    mythos::log::error("out of memory (a smaller train.micro_batch or train.recompute = \"loop\" needs less)");
    return static_cast<int>(ExitCode::failed);
  } catch (const std::exception& e) {
    mythos::log::live_line("");
    const std::string what = e.what();
    mythos::log::error("{}", what.substr(0, what.find('\n')));
    return static_cast<int>(ExitCode::failed);
  }
}
