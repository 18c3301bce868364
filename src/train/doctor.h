// What this machine has for a run, and what is missing, with what to do about it. Changes nothing here.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <vector>

namespace mythos {

struct Finding {
  enum class Mark {
    good,
    note,  ///< no run needs it, some would like it
    bad,   ///< a run would fail, or be refused
  };
  std::string what;  ///< "memory"
  Mark mark = Mark::good;
  std::string said;    ///< what was found, with its numbers
  std::string advice;  ///< what to do; may be empty
};

/// The program, processors, memory, GPUs, disk, and what is set for the hub, S3 and several processes. Contacts nobody.
std::vector<Finding> examine_machine();

/// What `mythos train` would look at before its first step: device, tokenizer, the data's first row, the run's folder,
/// memory, the disk, and that checkpoints can be written; of S3 by a small object that is removed again. Throws usage
/// Error if the configuration itself is wrong, Stopped if a signal asks for it.
std::vector<Finding> examine_run(const std::filesystem::path& config, const std::vector<std::string>& overrides);

/// {"ok": true, "checks": [{"what", "mark": "ok" | "note" | "bad", "found", "advice"}]}
Json to_json(const std::vector<Finding>& findings);
/// A line each, the advice below.
std::string findings_text(const std::vector<Finding>& findings);

}  // namespace mythos
