#include "checkpoint/store.h"

#include "base/error.h"
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

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:07}{}", name_start, step, name_end); }

CheckpointStore::CheckpointStore(const fs::path& where, int64_t keep_last, int64_t keep_every)
    : CheckpointStore(CheckpointTarget::at(where.string()), keep_last, keep_every) {}

CheckpointStore::CheckpointStore(std::unique_ptr<CheckpointTarget> target, int64_t keep_last, int64_t keep_every)
    : target_(std::move(target)),
      keep_last_(keep_last),
      keep_every_(keep_every),
      verified_(std::make_unique<Verified>()) {
  if (keep_last_ < 1 || keep_every_ < 0) {
    throw usage_error(
        fmt::format("checkpoint.keep_last is {} and checkpoint.keep_every {}: at least 1 and 0 are needed", keep_last_,
                    keep_every_));
  }
}

fs::path CheckpointStore::path_of(int64_t step) const { return target_->address_of(checkpoint_name(step)); }

void CheckpointStore::require_room(int64_t bytes_of_one, int64_t every, int64_t steps, bool goes_on,
                                   int64_t logs) const {
  const auto free = target_->free_bytes();
  if (!free) return;
  const int64_t at_once = checkpoints_at_once(keep_last_, keep_every_, every, steps);
  int64_t needed = at_once * bytes_of_one;
  if (goes_on) {
    for (const Step& s : steps_there(false)) needed -= static_cast<int64_t>(s.file.bytes);
  }
  // However many are there, the next one is written before any is removed.
  needed = std::max(needed, std::min<int64_t>(at_once, 1) * bytes_of_one);
  if (*free < static_cast<uint64_t>(needed + logs)) {
    const std::string beside =
        logs > 0 ? fmt::format(", and the logs about {}", bytes_text(static_cast<double>(logs))) : "";
    throw refusal(
        fmt::format("{} has {} free and the checkpoints need {}{} ({} bytes free, {} needed: {} of {} bytes at "
                    "once, less what is there)",
                    target_->address(), bytes_text(static_cast<double>(*free)), bytes_text(static_cast<double>(needed)),
                    beside, *free, needed, at_once, bytes_of_one),
        "free space, choose another checkpoint.dir, or keep fewer with checkpoint.keep_last or "
        "checkpoint.keep_every");
  }
}

fs::path CheckpointStore::save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                               const SaveOptions& options) {
  return save(meta, tensors, options,
              [&](uint64_t bytes) { return target_->create(checkpoint_name(meta.step), bytes, options.fast); });
}

std::unique_ptr<SharedFile> CheckpointStore::begin_shared(const CheckpointMeta& meta, int64_t writers) const {
  const CheckpointParts parts = checkpoint_parts(meta);
  return target_->create_shared(checkpoint_name(meta.step), parts.bytes, writers);
}

fs::path CheckpointStore::save(const CheckpointMeta& meta, SharedFile& file, const SaveOptions& options) {
  file.wait_for_others();
  const std::vector<TensorInfo> table = checkpoint_tensors(meta.model);
  const CheckpointParts parts = checkpoint_parts(meta);
  const auto bytes = file.read_back();
  if (bytes.size() != parts.bytes) throw failure(file.temporary().string() + " was changed by somebody else");
  std::vector<TensorBytes> tensors;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto size = static_cast<size_t>(tensor_bytes(table[i].dtype, table[i].shape).value_or(0));
    tensors.push_back({table[i], bytes.subspan(parts.offsets[i], size)});
  }
  return save(meta, tensors, options, [&](uint64_t) { return file.sink(); });
}

fs::path CheckpointStore::save(const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                               const SaveOptions& options,
                               const std::function<std::unique_ptr<ByteSink>(uint64_t bytes)>& open) {
  const CheckedPlace place{
      .shown = target_->address_of(checkpoint_name(meta.step)),
      .open = open,
      .free = [&] { return target_->free_bytes(); },
  };
  save_checkpoint(place, meta, tensors, {.threads = options.threads});
  saved_last_ = meta.step;
  if (!options.prune) return path_of(meta.step);
  if (prune_and_find_bad(meta.step)) {
    throw failure(fmt::format("{} was written and reads back damaged", place.shown),
                  "the disk or the way to it is failing: choose another checkpoint.dir");
  }
  return path_of(meta.step);
}

void CheckpointStore::prune() { prune_and_find_bad(-1); }

bool CheckpointStore::prune_and_find_bad(int64_t wanted) try {
  auto steps = steps_there(false);
  const int64_t keep = std::max(keep_last_, least_kept);
  if (static_cast<int64_t>(steps.size()) <= keep) return false;
  std::reverse(steps.begin(), steps.end());
  int64_t good = 0;
  bool found_bad = false;
  for (const auto& [step, file] : steps) {
    if (good < keep) {
      // Only files that are whole count; an error in reading one is no proof of anything, so that one just stays.
      try {
        if (is_good(file)) ++good;
      } catch (const FormatError& e) {
        log::warn("{}", e.line());
        found_bad = found_bad || step == wanted;
        set_aside(file.name, damaged_suffix);
      } catch (const Error& e) {
        log::warn("{}", e.line());
        if (target_->is_remote()) return found_bad;  // each of the others would be waited for as long
      }
      continue;
    }
    if (step == saved_last_ || (keep_every_ > 0 && step % keep_every_ == 0)) continue;
    try {
      target_->remove(file.name);
    } catch (const Error& e) {
      log::warn("the old checkpoint stays: {}", e.line());
    }
  }
  return found_bad;
} catch (const Error& e) {
  log::warn("old checkpoints were not removed: {}", e.line());
  return false;
}

std::vector<CheckpointStore::Step> CheckpointStore::steps_there(bool unfinished) const {
  std::vector<Step> steps;
  for (const StoredFile& file : target_->list()) {
    const auto step = step_of(file.name);
    if (!step || file.standing == Standing::aside) continue;
    if (file.standing == Standing::whole || unfinished) steps.push_back({*step, file});
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.step < b.step; });
  return steps;
}

std::vector<int64_t> CheckpointStore::list() const {
  std::vector<int64_t> out;
  for (const Step& s : steps_there(false)) out.push_back(s.step);
  return out;
}

bool CheckpointStore::is_verified(const StoredFile& file) const {
  const std::lock_guard lock(verified_->mutex);
  const auto it = verified_->version.find(file.name);
  return it != verified_->version.end() && it->second == file.version;
}

void CheckpointStore::note_verified(const StoredFile& file) const {
  const std::lock_guard lock(verified_->mutex);
  verified_->version[file.name] = file.version;
}

// Whether it is a training checkpoint. Throws FormatError for a damaged one, as far as can be told without reading what
// is remote a second time.
bool CheckpointStore::is_good(const StoredFile& file) const {
  if (is_verified(file)) return true;
  const Checkpoint checkpoint =
      target_->open(file, target_->is_remote() ? CheckpointTarget::Part::header : CheckpointTarget::Part::whole);
  if (!checkpoint.has_optimizer) return false;
  if (!target_->is_remote()) checkpoint.verify(1);
  note_verified(file);
  return true;
}

std::optional<Checkpoint> CheckpointStore::header_of(int64_t step) const {
  for (const Step& s : steps_there(false)) {
    if (s.step == step) return target_->open(s.file, CheckpointTarget::Part::header);
  }
  return std::nullopt;
}

std::optional<Checkpoint> CheckpointStore::newest(Damaged damaged) const {
  auto steps = steps_there(true);
  std::reverse(steps.begin(), steps.end());
  std::vector<std::string> bad;
  std::string first_reason;
  bool passed_over = false;
  for (const auto& [step, file] : steps) {
    const std::string shown = target_->address_of(file.name);
    try {
      Checkpoint checkpoint = target_->open(file, CheckpointTarget::Part::whole);
      if (!checkpoint.has_optimizer) {
        throw FormatError(fmt::format("{} holds weights alone, not a training checkpoint", shown));
      }
      checkpoint.verify();
      note_verified(file);
      if (damaged == Damaged::set_aside) {
        for (const std::string& name : bad) set_aside(name, damaged_suffix);
      }
      if (!bad.empty() || passed_over) log::warn("going on from {}, the newest good checkpoint", shown);
      return checkpoint;
    } catch (const FormatError& e) {
      if (file.standing == Standing::unfinished) {
        log::warn("{} was never written to its end: passed over", shown);
        passed_over = true;
        continue;
      }
      log::warn("{}", e.line());
      if (bad.empty()) first_reason = e.what();
      bad.push_back(file.name);
    } catch (const Error&) {
      const auto now = target_->list();  // else another process pruned it after we listed it
      if (std::any_of(now.begin(), now.end(), [&](const StoredFile& f) { return f.name == file.name; })) throw;
    }
  }
  // Those that were set aside before are counted: a folder that held checkpoints is not a fresh one.
  if (bad.empty()) {
    for (const StoredFile& file : target_->list()) {
      if (!file.name.starts_with(name_start) ||
          file.name.find(fmt::format("{}{}", name_end, damaged_suffix)) == std::string::npos) {
        continue;
      }
      bad.push_back(file.name);
      first_reason = fmt::format("{} was set aside as damaged", target_->address_of(file.name));
      break;
    }
  }
  if (bad.empty()) return std::nullopt;
  throw failure(fmt::format("no checkpoint in {} is good: {}", target_->address(), first_reason),
                "bring a good copy back, or start anew with --fresh, which sets the old run aside");
}

void CheckpointStore::set_aside_newer(int64_t step) const {
  for (const Step& s : steps_there(true)) {
    if (s.step > step) set_aside(s.file.name, aside_suffix);
  }
}

void CheckpointStore::set_aside(const std::string& name, std::string_view suffix) const try {
  log::warn("{}", target_->set_aside(name, suffix));
} catch (const Error& e) {
  log::warn("{}", e.line());
}

}  // namespace mythos
