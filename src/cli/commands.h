// The command line. Each command lives in a file of its own that reads its options and calls the libraries.
#pragma once

#include <CLI/CLI.hpp>

namespace mythos::cli {

/// What a finished command tells main: its exit code.
struct Result {
  int exit_code = 0;
};

void add_plan(CLI::App& app, Result& result);
void add_train(CLI::App& app, Result& result);
void add_eval(CLI::App& app, Result& result);
void add_generate(CLI::App& app, Result& result);
void add_tokenizer(CLI::App& app, Result& result);
void add_data(CLI::App& app, Result& result);
void add_doctor(CLI::App& app, Result& result);
void add_inspect(CLI::App& app, Result& result);
void add_report(CLI::App& app, Result& result);
void add_convert(CLI::App& app, Result& result);
void add_bench(CLI::App& app, Result& result);

}  // namespace mythos::cli
