// `mythos bench WHAT`: one function for each, in a file of its own.
#pragma once

#include <CLI/CLI.hpp>

namespace mythos::cli {

void add_bench_tokenizer(CLI::App& bench);
void add_bench_data(CLI::App& bench);
void add_bench_generate(CLI::App& bench);
void add_bench_train(CLI::App& bench);
void add_bench_ops(CLI::App& bench);

}  // namespace mythos::cli
