#include "checkpoint/store.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "checkpoint/layout.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view name_start = "step_";
constexpr std::string_view name_end = ".safetensors";
constexpr std::string_view damaged_suffix = ".damaged";
constexpr std::string_view aside_suffix = ".set_aside";

// The step in a checkpoint's name, or nothing for any other name.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(name_start) || !name.ends_with(name_end)) return std::nullopt;
  if (name.size() <= name_start.size() + name_end.size()) return std::nullopt;
  int64_t step = 0;
  const char* last = name.data() + name.size() - name_end.size();
  const auto [end, code] = std::from_chars(name.data() + name_start.size(), last, step);
  if (code != std::errc() || end != last || step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

// Names of regular files in a folder; none without the folder.
std::vector<std::string> file_names(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code ec;
  fs::directory_iterator it(dir, ec);
  if (ec == std::errc::no_such_file_or_directory) return names;
  for (; !ec && it != fs::directory_iterator(); it.increment(ec)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) names.push_back(it->path().filename().string());
  }
  if (ec) {
    throw failure(fmt::format("cannot read the checkpoint folder {}: {}", dir.string(), ec.message()),
                  "check that it is mounted and that you may read it");
  }
  return names;
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:07}{}", name_start, step, name_end); }

CheckpointStore::CheckpointStore(fs::path dir, int64_t keep_last, int64_t keep_every)
    : dir_(std::move(dir)), keep_last_(keep_last), keep_every_(keep_every) {
  if (keep_last_ < 1 || keep_every_ < 0) {
    throw usage_error(
        fmt::format("checkpoint.keep_last is {} and checkpoint.keep_every {}: at least 1 and 0 are needed", keep_last_,
                    keep_every_));
  }
}

void CheckpointStore::prepare() const {
  make_folder(dir_);
  remove_stale_temporaries(dir_);
  const fs::path probe = dir_ / ".write_test";
  write_file_atomically(probe, "a checkpoint can be written here\n");
  std::error_code ec;
  fs::remove(probe, ec);
}

void CheckpointStore::require_room(int64_t bytes_of_one, int64_t every, int64_t steps, bool goes_on) const {
  const int64_t at_once = checkpoints_at_once(keep_last_, keep_every_, every, steps);
  int64_t needed = at_once * bytes_of_one;
  for (const int64_t step : goes_on ? list() : std::vector<int64_t>()) {
    std::error_code ec;
    const auto size = fs::file_size(path_of(step), ec);
    if (!ec) needed -= static_cast<int64_t>(size);
  }
  // However many are there, the next one is written before any is removed.
  needed = std::max(needed, std::min<int64_t>(at_once, 1) * bytes_of_one);
  // The folder may not exist yet: what counts is the nearest one above that does.
  fs::path there = fs::absolute(dir_);
  std::error_code ec;
  while (!fs::exists(there, ec) && there.has_relative_path()) there = there.parent_path();
  const fs::space_info space = fs::space(there, ec);
  if (ec || space.capacity == 0) return;  // a file system that does not tell
  if (space.available < static_cast<uint64_t>(needed)) {
    throw refusal(
        fmt::format("{} has {} free and the checkpoints need {} ({} bytes free, {} needed: {} of {} bytes at once, "
                    "less what is there)",
                    dir_.string(), bytes_text(static_cast<double>(space.available)),
                    bytes_text(static_cast<double>(needed)), space.available, needed, at_once, bytes_of_one),
        "free space, choose another checkpoint.dir, or keep fewer with checkpoint.keep_last or "
        "checkpoint.keep_every");
  }
}

fs::path CheckpointStore::save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors) {
  fs::path path = path_of(meta.step);
  save_checkpoint(path, meta, tensors);
  saved_last_ = meta.step;
  prune();
  return path;
}

void CheckpointStore::prune() try {
  auto steps = list();
  std::reverse(steps.begin(), steps.end());
  int64_t good = 0;
  for (const int64_t step : steps) {
    const fs::path path = path_of(step);
    if (good < keep_last_) {
      // Only files that are whole count; an error in reading one is no proof of anything, so that one just stays.
      try {
        if (Checkpoint::open(path).has_optimizer) ++good;
      } catch (const FormatError& e) {
        log::warn("{}", e.line());
        set_aside(path, damaged_suffix);
      } catch (const Error& e) {
        log::warn("{}", e.line());
      }
      continue;
    }
    if (step == saved_last_ || (keep_every_ > 0 && step % keep_every_ == 0)) continue;
    std::error_code ec;
    fs::remove(path, ec);
    if (ec) log::warn("cannot remove the old checkpoint {}: {}", path.string(), ec.message());
  }
} catch (const Error& e) {
  log::warn("old checkpoints were not removed: {}", e.line());
}

std::vector<int64_t> CheckpointStore::list() const {
  std::vector<int64_t> steps;
  for (const std::string& name : file_names(dir_)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Checkpoint> CheckpointStore::newest(Damaged damaged) const {
  auto steps = list();
  std::reverse(steps.begin(), steps.end());
  std::vector<fs::path> bad;
  std::string first_reason;
  for (const int64_t step : steps) {
    const fs::path path = path_of(step);
    try {
      Checkpoint checkpoint = Checkpoint::open(path);
      if (!checkpoint.has_optimizer) {
        throw FormatError(fmt::format("{} holds weights alone, not a training checkpoint", path.string()));
      }
      checkpoint.verify();
      if (damaged == Damaged::set_aside) {
        for (const fs::path& p : bad) set_aside(p, damaged_suffix);
      }
      if (!bad.empty()) log::warn("going on from {}, the newest good checkpoint", path.string());
      return checkpoint;
    } catch (const FormatError& e) {
      log::warn("{}", e.line());
      if (bad.empty()) first_reason = e.what();
      bad.push_back(path);
    } catch (const Error&) {
      std::error_code ec;
      if (fs::exists(path, ec) || ec) throw;  // else another process pruned it after we listed it
    }
  }
  // Those that were set aside before are counted: a folder that held checkpoints is not a fresh one.
  for (const std::string& name : file_names(dir_)) {
    if (!bad.empty()) break;
    if (name.starts_with(name_start) && name.find(fmt::format("{}{}", name_end, damaged_suffix)) != std::string::npos) {
      bad.push_back(dir_ / name);
      first_reason = fmt::format("{} was set aside as damaged", (dir_ / name).string());
    }
  }
  if (bad.empty()) return std::nullopt;
  throw failure(fmt::format("no checkpoint in {} is good: {}", dir_.string(), first_reason),
                "bring a good copy back, or start anew with --fresh, which sets the old run aside");
}

void CheckpointStore::set_aside_newer(int64_t step) const {
  for (const int64_t s : list()) {
    if (s > step) set_aside(path_of(s), aside_suffix);
  }
}

void CheckpointStore::set_aside(const fs::path& path, std::string_view suffix) const {
  std::error_code ec;
  for (int n = 1; n < 1000; ++n) {
    const fs::path target = fmt::format("{}{}{}", path.string(), suffix, n == 1 ? "" : fmt::format(".{}", n));
    if (fs::exists(fs::symlink_status(target, ec))) continue;
    fs::rename(path, target, ec);
    if (ec) break;
    log::warn("{} is now {}", path.string(), target.filename().string());
    return;
  }
  log::warn("{} could not be set aside: {}", path.string(), ec ? ec.message() : "too many such files");
}

}  // namespace mythos
