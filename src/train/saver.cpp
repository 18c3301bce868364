#include "train/saver.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "checkpoint/layout.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

constexpr int64_t room_to_watch = 3;  // checkpoints
constexpr size_t grain = size_t{4} << 20;
// Beside threads that compute on every processor, about a tenth of one: of 19 there would be a sixtieth, and a large
// checkpoint would be on its way for an hour.
constexpr int writers_niceness = 10;

// On Linux niceness belongs to a thread.
int this_thread() { return static_cast<int>(::syscall(SYS_gettid)); }
void set_niceness(int thread, int niceness) { ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), niceness); }

// Many large pieces on all threads that compute: the step waits for this copy.
void copy_bytes(const std::vector<std::pair<std::span<const std::byte>, std::byte*>>& parts) {
  std::vector<std::pair<std::span<const std::byte>, std::byte*>> pieces;
  for (auto [from, to] : parts) {
    for (; !from.empty(); to += pieces.back().first.size()) {
      pieces.emplace_back(from.first(std::min(grain, from.size())), to);
      from = from.subspan(pieces.back().first.size());
    }
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [from, to] = pieces[static_cast<size_t>(i)];
      std::memcpy(to, from.data(), from.size());
    }
  });
}

}  // namespace

int64_t snapshot_bytes(const ModelConfig& model) {
  int64_t bytes = 0;
  for (const TensorInfo& t : checkpoint_tensors(model)) bytes += t.numel() * static_cast<int64_t>(sizeof(float));
  return bytes;
}

Saver::Saver(CheckpointStore& store, SaverOptions options) : store_(store), options_(std::move(options)) {}

Saver::~Saver() { wait(); }

void Saver::wait() {
  if (!writer_.joinable()) return;
  // Somebody waits now. Not everybody may take niceness back; then it stays.
  if (const int writer = writer_id_; busy_ && writer != 0) set_niceness(writer, ::getpriority(PRIO_PROCESS, 0));
  writer_.join();
  being_written_ = {};
}

// Points what is to be written to copies; false if there is no memory for them.
bool Saver::copy(TrainingState& state) {
  std::set<const void*> owned;
  for (const at::Tensor& t : state.copies) owned.insert(t.const_data_ptr());
  std::vector<std::span<const std::byte>*> all;
  for (TensorBytes& t : state.tensors) all.push_back(&t.data);
  if (state.share) {
    for (FilePiece& piece : state.share->pieces) all.push_back(&piece.bytes);
  }
  std::erase_if(all, [&](const auto* bytes) { return owned.contains(bytes->data()); });
  size_t needed = 0;
  for (const auto* bytes : all) needed += bytes->size();
  if (!snapshot_.defined() || static_cast<size_t>(snapshot_.numel()) < needed) {
    snapshot_.reset();
    if (available_memory() < static_cast<int64_t>(needed + needed / 16)) return false;
    try {
      snapshot_ = at::empty({static_cast<int64_t>(needed)}, at::kByte);
    } catch (const std::exception&) {  // LibTorch's own, or bad_alloc
      return false;
    }
  }
  std::vector<std::pair<std::span<const std::byte>, std::byte*>> parts;
  auto* to = static_cast<std::byte*>(snapshot_.mutable_data_ptr());
  for (auto* bytes : all) {
    parts.emplace_back(*bytes, to);
    *bytes = {to, bytes->size()};
    to += bytes->size();
  }
  copy_bytes(parts);
  return true;
}

bool Saver::leave_out(int64_t step) {
  if (!busy_) return false;
  if (saved_ != step && left_out_++ == 0) {
    log::warn(
        "the checkpoint of step {} is still being written after {}: step {} gets none. {} is too slow for "
        "one every {} steps; try checkpoint.every = {} or more",
        writing_step_, duration_text(seconds_since(begun_)), step, store_.dir().string(), options_.every,
        2 * options_.every);
  }
  return true;
}

void Saver::save_soon(const CheckpointMeta& meta, TrainingState state) {
  // Where several ranks write, they have agreed on it.
  if (!state.share && (saved_ == meta.step || leave_out(meta.step))) return;
  wait();
  const auto begin = Clock::now();
  const bool copied = options_.background && copy(state);
  if (!copied) {
    if (options_.background && !told_no_memory_) {
      log::warn("training waits for each checkpoint to be written: a copy to write from takes {} and {} are free",
                bytes_text(static_cast<double>(snapshot_bytes(meta.model))),
                bytes_text(static_cast<double>(available_memory())));
    }
    told_no_memory_ = true;
    waited_ = -1;
    write_or_warn(meta, state, {});
    return;
  }
  being_written_ = std::move(state);
  begun_ = begin;
  waited_ = seconds_since(begin);
  writing_step_ = meta.step;
  writer_id_ = 0;
  busy_ = true;
  writer_ = std::thread([this, meta] {
    writer_id_ = this_thread();
    set_niceness(this_thread(), writers_niceness);
    write_or_warn(meta, being_written_, {.threads = 1, .fast = false});
    busy_ = false;
  });
}

void Saver::give_up_on_parts() {
  if (busy_ && being_written_.share && being_written_.share->whole) being_written_.share->whole->give_up();
}

void Saver::save_now(const CheckpointMeta& meta, const TrainingState& state, bool prune) {
  wait();
  if (!state.share && saved_ == meta.step) return;
  waited_ = -1;
  write(meta, state, {.prune = prune});
}

// Empty where others finish it.
std::filesystem::path Saver::write_share(const CheckpointMeta& meta, const CheckpointShare& share,
                                         const SaveOptions& options) {
  struct Closing {
    SharedFile* file;
    ~Closing() {
      if (file != nullptr) file->close();
    }
  } const closing{share.whole.get()};
  if (!write_part(share.file, share.rank, share.pieces)) {
    part_lost_ = true;
    throw failure(fmt::format("this rank's part of {} could neither be written nor given up",
                              store_.path_of(meta.step).string()));
  }
  return share.whole ? store_.save(meta, *share.whole, options) : std::filesystem::path();
}

void Saver::write(const CheckpointMeta& meta, const TrainingState& state, const SaveOptions& options) {
  const auto begin = Clock::now();
  const auto path = state.share ? write_share(meta, *state.share, options) : store_.save(meta, state.tensors, options);
  saved_ = meta.step;
  if (path.empty()) return;  // the first rank says what became of it
  log::info("saved {} in {:.1f} s{}", path.string(), seconds_since(begin),
            waited_ < 0 ? "" : fmt::format(" (training waited {:.2f} s)", waited_));
  watch_space(meta);
}

void Saver::write_or_warn(const CheckpointMeta& meta, const TrainingState& state, const SaveOptions& options) {
  try {
    write(meta, state, options);
  } catch (const Error& e) {
    log::warn("no checkpoint at step {}: {}; training goes on, the next try is in {} steps", meta.step, e.line(),
              options_.every);
  } catch (const std::exception& e) {  // of a library, in a thread of its own
    log::warn("no checkpoint at step {}: {}; training goes on, the next try is in {} steps", meta.step, e.what(),
              options_.every);
  }
}

// How many more fit beside those that are to stay: something else may be filling the disk.
void Saver::watch_space(const CheckpointMeta& meta) try {
  const auto free = store_.free_bytes();
  const int64_t to_come = options_.every > 0 ? (options_.steps - meta.step + options_.every - 1) / options_.every : 0;
  if (!free || to_come <= 0) return;
  const int64_t one = checkpoint_bytes(meta.model);
  const auto there = static_cast<int64_t>(store_.list().size());
  const int64_t missing = std::max<int64_t>(0, std::max(store_.keep_last(), least_kept) - there);
  const int64_t room = std::max<int64_t>(0, static_cast<int64_t>(*free) / one - missing);
  if (room >= std::min(room_to_watch, to_come)) {
    room_told_ = -1;
    return;
  }
  if (room_told_ >= 0 && room >= room_told_) return;
  room_told_ = room;
  const std::string text = fmt::format(
      "{} has {} free: beside the checkpoints that are to stay there is room for {} more of {} ({} bytes free, {} "
      "each)",
      store_.dir().string(), bytes_text(static_cast<double>(*free)), room, bytes_text(static_cast<double>(one)), *free,
      one);
  log::warn("{}", text);
  if (options_.on_low_space) options_.on_low_space(meta.step, text);
} catch (const Error&) {  // the checkpoint is there; its room can wait
}

}  // namespace mythos
