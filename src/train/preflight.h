// What is looked at before the first step, as a short table: a run that cannot end well is refused with the numbers.
#pragma once

#include "base/error.h"
#include "train/run.h"

#include <string>
#include <vector>

namespace mythos {

class Preflight {
 public:
  struct Row {
    std::string what, said;
    bool bad = false;
    std::string hint;
  };

  /// `force`: what would be refused is a warning.
  explicit Preflight(bool force) : force_(force) {}

  /// Something that is as it should be; `said` has the numbers.
  void good(const std::string& what, const std::string& said) { rows_.push_back({what, said, false, ""}); }
  /// Something that would end badly. It is refused by settle(), so that the table has the rest as well.
  void bad(const std::string& what, const Error& error);
  /// If something was bad and that is not forced: prints the table and throws a refusal (exit 3) with the first of it.
  void settle();
  /// Prints the table, and what was bad and is forced as warnings.
  void print() const;
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }

 private:
  bool force_;
  std::vector<Row> rows_;
  std::vector<Error> errors_;
};

/// "14.2 MB in 1 file".
std::string size_text(const Sources& sources);
/// About what log.txt, metrics.jsonl and the TensorBoard events of a whole run take, bytes.
int64_t log_bytes(const RunConfig& config, int64_t steps);

/// Before anything is created or moved: the checkpoint a run goes on from and how the configuration differs from it,
/// memory against the plan, free space for checkpoints and logs, the data source (whose first bytes were read when it
/// was opened).
void look_before(Preflight& preflight, const Run& run, int64_t checkpoint_size, bool fresh);
/// The last but one of these: the disk of checkpoints and logs.
void look_at_disk(Preflight& preflight, const Run& run, int64_t checkpoint_size, bool fresh);
/// In the run's folders: that a small file can be written where checkpoints go, synced, renamed and removed.
void look_at_target(Preflight& preflight, const Run& run);

}  // namespace mythos
