// What TensorBoard itself (the PyPI package, installed by scripts/setup --test) reads from a folder of event files.
#pragma once

#include "base/json.h"
#include "program.h"

#include <filesystem>
#include <stdexcept>
#include <string>

namespace mythos::testing {

struct TensorBoard {
  /// Empty if it can run here, else what is missing.
  static std::string missing() {
    for (const char* part : {"/tensorboard/stamp", "/python3.11"}) {
      const std::string path = std::string(MYTHOS_DEPS_DIR) + part;
      if (!std::filesystem::exists(path)) return path + " is missing: run scripts/setup --test";
    }
    return "";
  }
  /// {"curves": {NAME: [[step, value], ..]}, "texts": {NAME: [[step, text, plugin], ..]}}
  static Json read(const std::filesystem::path& folder) {
    Program::Options options;
    options.program = std::string(MYTHOS_DEPS_DIR) + "/python3.11";
    options.environment = {{"PYTHONPATH", std::string(MYTHOS_DEPS_DIR) + "/tensorboard"},
                           {"PYTHONDONTWRITEBYTECODE", "1"}};
    const Outcome outcome = run_program({std::string(MYTHOS_TEST_DIR) + "/support/read_events.py", folder}, options);
    if (outcome.code != 0) throw std::runtime_error(outcome.err);
    return Json::parse(outcome.out);
  }
};

}  // namespace mythos::testing
