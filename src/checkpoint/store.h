// The folder of a run's checkpoints: saves them whole, keeps those that matter, and finds the newest good one again
// whatever happened in between.
#pragma once

#include "base/safetensors.h"
#include "checkpoint/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// "step_0000600.safetensors"; more digits when needed.
std::string checkpoint_name(int64_t step);

class CheckpointStore {
 public:
  /// keep_last: how many of the newest good ones stay, at least 1. keep_every: those whose step is a multiple of it
  /// stay for ever; 0: none. Touches nothing yet.
  CheckpointStore(std::filesystem::path dir, int64_t keep_last, int64_t keep_every = 0);

  /// Before a run: creates the folder, removes what killed processes left, and proves by a small file that writing,
  /// syncing and renaming work there. Throws Error with the reason.
  void prepare() const;
  /// Throws a refusal with the bytes needed and free if a run that saves every `every` of `steps` steps does not fit
  /// the disk. What is there already counts, unless it will be set aside (`goes_on` false).
  void require_room(int64_t bytes_of_one, int64_t every, int64_t steps, bool goes_on = true) const;

  /// Writes the checkpoint of meta.step (replacing one of the same step) and then prunes. Throws Error, all earlier
  /// ones untouched, if the checkpoint could not be written; never because of the pruning.
  std::filesystem::path save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors);
  /// Removes all but the keep_last newest good ones, the milestones and the one saved last; sets damaged ones that it
  /// meets aside. What it cannot remove is a warning. To be called after resuming too: a run killed between saving and
  /// pruning leaves one file more.
  void prune();

  /// Steps of the files there, ascending, good or not; empty without the folder. Throws Error if it cannot be read.
  [[nodiscard]] std::vector<int64_t> list() const;
  [[nodiscard]] std::filesystem::path path_of(int64_t step) const { return dir_ / checkpoint_name(step); }

  enum class Damaged {
    set_aside,  ///< rename to NAME.damaged, never over another file
    leave,      ///< for readers that must change nothing
  };
  /// The newest training checkpoint whose every byte is verified; damaged newer ones are named in warnings. Nothing
  /// where there never was one. Throws Error if there are some and none is good, or if a file cannot be read: a run
  /// must not begin anew over them.
  [[nodiscard]] std::optional<Checkpoint> newest(Damaged damaged = Damaged::set_aside) const;

  /// After going back to `step`: renames newer ones to NAME.set_aside, never over another file.
  void set_aside_newer(int64_t step) const;

  [[nodiscard]] const std::filesystem::path& dir() const { return dir_; }

 private:
  void set_aside(const std::filesystem::path& path, std::string_view suffix) const;

  std::filesystem::path dir_;
  int64_t keep_last_;
  int64_t keep_every_;
  int64_t saved_last_ = -1;
};

}  // namespace mythos
