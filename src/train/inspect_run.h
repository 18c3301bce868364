// `mythos inspect RUN`: where a run stands, told from its files alone, while it trains or afterwards.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace mythos {

/// Keys: run, state (see ObservedRun; "unknown" for a folder of checkpoints alone), message, pid, host, updated,
/// seconds_since_update, step, steps, tokens, loss, tokens_per_s, mfu, eta_seconds, hours, cost_usd, checkpoints (the
/// steps there are), newest_verified {path, step, tokens, created, verified: "when written" or "now"}, parameters,
/// train_flops_per_token, checkpoint_bytes, last_step (its line of metrics.jsonl); each where it is known.
///
/// Nothing is changed, and of a checkpoint that the run itself knows to be whole only the header is read; `verify` (and
/// a run that says nothing of itself) has all of the newest checkpoint read. Throws usage Error for a folder that is no
/// run.
Json inspect_run(const std::filesystem::path& run, bool verify);
/// The same for a person, but for the history: each line's name and what it says.
std::vector<std::pair<std::string, std::string>> inspect_run_lines(const Json& inspected);
/// Those lines, and the last events of the history.
std::string inspect_run_text(const Json& inspected);

}  // namespace mythos
