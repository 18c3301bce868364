// The checkpoints of a run, in a folder or on S3: saves them whole, keeps those that matter, and finds the newest good
// one again whatever happened in between.
#pragma once

#include "base/safetensors.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/target.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// "step_0000600.safetensors"; more digits when needed.
std::string checkpoint_name(int64_t step);

/// How a checkpoint is saved.
struct SaveOptions {
  int threads = 2;    ///< for checksums
  bool fast = true;   ///< see CheckpointTarget::create
  bool prune = true;  ///< false: the next save, or the next start, does it
};

/// list, path_of and free_bytes may be called while another thread saves; everything else by one thread at a time.
class CheckpointStore {
 public:
  /// `where`: a path, or "s3://BUCKET/PREFIX". keep_last: how many of the newest good ones stay, at least 1 (see
  /// least_kept). keep_every: those whose step is a multiple of it stay for ever; 0: none. Touches nothing yet.
  CheckpointStore(const std::filesystem::path& where, int64_t keep_last, int64_t keep_every = 0);
  CheckpointStore(std::unique_ptr<CheckpointTarget> target, int64_t keep_last, int64_t keep_every = 0);

  /// Before a run: creates the folder, removes what killed processes left, and proves that writing, syncing, renaming
  /// (or marking, see LocalTarget), reading back and deleting work there. Throws Error with the reason.
  void prepare() const { target_->prepare(); }
  /// Throws a refusal with the bytes needed and free if a run that saves every `every` of `steps` steps does not fit
  /// the disk beside `logs` bytes. What is there already counts, unless it will be set aside (`goes_on` false).
  void require_room(int64_t bytes_of_one, int64_t every, int64_t steps, bool goes_on = true, int64_t logs = 0) const;
  /// Nothing where there is no limit, or none that can be known.
  [[nodiscard]] std::optional<uint64_t> free_bytes() const { return target_->free_bytes(); }

  /// Writes the checkpoint of meta.step (replacing one of the same step) and then prunes. Throws Error, all earlier
  /// ones untouched, if the checkpoint could not be written, a number is not finite, or what was written reads back
  /// damaged; never because of the pruning.
  std::filesystem::path save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                             const SaveOptions& options = {});
  /// Whether ranks that see the folder may write a checkpoint together.
  [[nodiscard]] bool takes_parts() const { return target_->takes_parts(); }
  /// A file for that, to be filled by `writers` processes at the places of checkpoint_parts(meta) and then given to
  /// save(). Throws Error.
  [[nodiscard]] std::unique_ptr<SharedFile> begin_shared(const CheckpointMeta& meta, int64_t writers) const;
  /// Waits for the other writers, then does what the other save() does with what they wrote.
  std::filesystem::path save(const CheckpointMeta& meta, SharedFile& file, const SaveOptions& options = {});
  /// Removes all but the newest good ones that are to stay, the milestones and the one saved last; sets damaged ones
  /// that it meets aside. Good are those of which every byte was verified since they last changed; of remote ones the
  /// header and the size. Nothing is read where nothing would go. What it cannot remove is a warning. To be called
  /// after resuming too: a run killed between saving and pruning leaves one file more.
  void prune();

  /// Steps of the files there that were written to their end, ascending, good or not; empty without the folder. Throws
  /// Error if it cannot be read.
  [[nodiscard]] std::vector<int64_t> list() const;
  /// The step's file, or for S3 its address.
  [[nodiscard]] std::filesystem::path path_of(int64_t step) const;

  enum class Damaged {
    set_aside,  ///< NAME.damaged, never over another file, or a note
    leave,      ///< for readers that must change nothing
  };
  /// The newest training checkpoint whose every byte is verified; damaged newer ones are named in warnings. Nothing
  /// where there never was one. Throws Error if there are some and none is good, or if a file cannot be read: a run
  /// must not begin anew over them.
  [[nodiscard]] std::optional<Checkpoint> newest(Damaged damaged = Damaged::set_aside) const;

  /// What the file of `step` says of itself: its tensors need not be read. Nothing where there is none.
  [[nodiscard]] std::optional<Checkpoint> header_of(int64_t step) const;

  /// After going back to `step`: newer ones do not count any more (NAME.set_aside, never over another file, or a note).
  void set_aside_newer(int64_t step) const;
  /// Everything there gets out of the way; returns where it is now.
  std::string set_all_aside() { return target_->set_all_aside(); }

  [[nodiscard]] std::filesystem::path dir() const { return target_->address(); }
  [[nodiscard]] bool is_remote() const { return target_->is_remote(); }
  [[nodiscard]] int64_t keep_last() const { return keep_last_; }

 private:
  struct Step {
    int64_t step = 0;
    StoredFile file;
  };
  // What was found good, by name, as it was then.
  struct Verified {
    std::mutex mutex;
    std::map<std::string, std::string> version;
  };

  std::filesystem::path save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                             const SaveOptions& options,
                             const std::function<std::unique_ptr<ByteSink>(uint64_t bytes)>& open);
  bool prune_and_find_bad(int64_t wanted);  // whether the wanted step was damaged
  [[nodiscard]] std::vector<Step> steps_there(bool unfinished) const;
  [[nodiscard]] bool is_verified(const StoredFile& file) const;
  void note_verified(const StoredFile& file) const;
  [[nodiscard]] bool is_good(const StoredFile& file) const;
  void set_aside(const std::string& name, std::string_view suffix) const;

  std::unique_ptr<CheckpointTarget> target_;
  int64_t keep_last_;
  int64_t keep_every_;
  int64_t saved_last_ = -1;
  std::unique_ptr<Verified> verified_;
};

}  // namespace mythos
