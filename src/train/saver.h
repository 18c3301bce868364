// Saving while training goes on: a copy of the state, and a thread that writes it.
#pragma once

#include "checkpoint/store.h"
#include "model/parameters.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace mythos {

/// Bytes of the copy that a training state needs.
int64_t snapshot_bytes(const ModelConfig& model);

/// What one rank writes of a checkpoint that several write together.
struct CheckpointShare {
  std::filesystem::path file;         ///< SharedFile::temporary()
  int64_t rank = 0;                   ///< of the writers; the first has `whole`
  std::unique_ptr<SharedFile> whole;  ///< finishes it
  std::vector<FilePiece> pieces;
};

/// The tensors of a checkpoint as they are now, as training_tensors() gives them; or one rank's share of them.
struct TrainingState {
  std::vector<TensorBytes> tensors;
  std::optional<CheckpointShare> share;
  std::vector<at::Tensor> copies;  ///< owns the bytes of those tensors and pieces that are copies already
};

struct SaverOptions {
  int64_t every = 0;       ///< steps between checkpoints
  int64_t steps = 0;       ///< the run's length
  bool background = true;  ///< false: training waits for each
  /// Told once each time when room is left for fewer checkpoints than before, and below three; of the step whose
  /// checkpoint is written, perhaps by the thread that writes it.
  std::function<void(int64_t, const std::string&)> on_low_space = nullptr;
};

/// To be used from one thread. The store must outlive it, and meanwhile no other save of the store may be called.
class Saver {
 public:
  Saver(CheckpointStore& store, SaverOptions options);
  /// Waits for what is being written.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// For an interval: copies the state and returns, while a thread of low priority writes it. Where the last one
  /// is still being written, this one is left out (see leave_out); where there is no memory for a copy, the state is
  /// written at once. What fails is a warning.
  void save_soon(const CheckpointMeta& meta, TrainingState state);
  /// Whether the one of `step` must be left out, which is counted and said.
  bool leave_out(int64_t step);
  /// For an end: waits for what is being written, then writes the state with all the speed there is, unless that step
  /// is saved by then. Throws Error. `prune`: see SaveOptions.
  void save_now(const CheckpointMeta& meta, const TrainingState& state, bool prune = true);
  /// Whether this rank could not tell the first one that its part of a checkpoint failed; once. The first one is then
  /// told by give_up_on_parts().
  [[nodiscard]] bool take_part_lost() { return part_lost_.exchange(false); }
  void give_up_on_parts();
  /// Waits for what is being written. Afterwards the store may be used in any way.
  void wait();
  [[nodiscard]] bool busy() const { return busy_; }

  /// The last step that was saved; -1 if there was none.
  [[nodiscard]] int64_t saved() const { return saved_; }
  /// After going back to `step`: what was saved later does not count any more.
  void went_back_to(int64_t step) {
    wait();
    if (saved_ > step) saved_ = step;
  }
  /// Intervals that were left out because the one before took too long.
  [[nodiscard]] int64_t left_out() const { return left_out_; }

 private:
  bool copy(TrainingState& state);
  void write(const CheckpointMeta& meta, const TrainingState& state, const SaveOptions& options);
  void write_or_warn(const CheckpointMeta& meta, const TrainingState& state, const SaveOptions& options);
  std::filesystem::path write_share(const CheckpointMeta& meta, const CheckpointShare& share,
                                    const SaveOptions& options);
  void watch_space(const CheckpointMeta& meta);

  CheckpointStore& store_;
  SaverOptions options_;
  at::Tensor snapshot_;  // bytes
  TrainingState being_written_;
  std::thread writer_;
  std::atomic<bool> busy_ = false, part_lost_ = false;
  std::atomic<int64_t> saved_ = -1;
  std::atomic<int> writer_id_ = 0;
  std::chrono::steady_clock::time_point begun_;
  double waited_ = -1;  // seconds that training stood still for what is being written; -1: all of it
  int64_t writing_step_ = -1;
  int64_t left_out_ = 0;
  int64_t room_told_ = -1;
  bool told_no_memory_ = false;
};

}  // namespace mythos
