// Pieces several commands share.
#pragma once

#include "base/json.h"
#include "model/config.h"

#include <ATen/ATen.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace mythos::cli {

/// --set section.key=VALUE, which may be repeated, over `what`.
void add_overrides(CLI::App& command, std::vector<std::string>& overrides, const char* what = "the configuration");

/// What a SRC argument can be.
constexpr const char* source_help =
    "a file, folder or glob of .txt, .jsonl (plain, .gz, .zst) or .parquet, or an address: "
    "hf://datasets/OWNER/NAME[/PATH], "
    "s3://BUCKET/PREFIX, https://...";

/// Prints one JSON document on stdout.
void print_json(const Json& json);
/// Prints text on stdout; throws Error if it cannot be written.
void print(const std::string& text);
/// "1,2,4" -> {1, 2, 4}; throws usage Error naming `option`.
std::vector<int64_t> integers(const std::string& text, const char* option);
/// Throws what exits with 128 + n if signal n asked for a stop; `what` says what is left.
void stop_if_asked(const std::string& what);
/// Threads for LibTorch: `asked`, or all this process may use where that is 0.
void set_threads(int64_t asked);
/// "float32", "bfloat16", "float64" (and fp32, bf16, fp64); throws usage Error.
at::ScalarType dtype_from(const std::string& name);

}  // namespace mythos::cli
