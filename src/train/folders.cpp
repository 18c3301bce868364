// A run's folders: locking, setting aside, creating.
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/places.h"
#include "train/run_parts.h"

namespace mythos {
namespace fs = std::filesystem;

namespace {

// Whether checkpoints lie somewhere else than in the run's folder.
bool checkpoints_outside(const Run& run) {
  if (run.store->is_remote()) return true;
  const fs::path inside = fs::weakly_canonical(run.store->dir()).lexically_relative(fs::weakly_canonical(run.dir));
  return inside.empty() || *inside.begin() == "..";
}

std::unique_ptr<FolderLock> lock(const fs::path& folder, const char* key) {
  return std::make_unique<FolderLock>(folder, "training in",
                                      fmt::format("choose another folder with --set {}=DIR", key));
}

}  // namespace

void lock_folders(Run& run) {
  std::error_code ec;
  if (!run.lock && fs::is_directory(run.dir, ec)) run.lock = lock(run.dir, "run.dir");
  if (!run.checkpoint_lock && !run.store->is_remote() && checkpoints_outside(run) &&
      fs::is_directory(run.store->dir(), ec)) {
    run.checkpoint_lock = lock(run.store->dir(), "checkpoint.dir");
  }
}

void enter_folders(Run& run, bool fresh) {
  std::error_code ec;
  if (fresh) {
    lock_folders(run);  // nobody trains there
    run.lock.reset();
    run.checkpoint_lock.reset();
    const bool there = run.store->is_remote() ? !run.store->list().empty() : fs::exists(run.store->dir(), ec);
    std::string old_checkpoints;
    if (checkpoints_outside(run) && there) {
      old_checkpoints = run.store->set_all_aside();
      log::info("the old checkpoints are set aside as {}", old_checkpoints);
    }
    if (fs::exists(run.dir, ec)) {
      const fs::path old = set_folder_aside(run.dir);
      log::info("the old run is set aside as {}", old.string());
      if (!old_checkpoints.empty()) remember_checkpoint_place(old, old_checkpoints);
    }
  }
  make_folder(run.dir);
  if (!run.store->is_remote()) make_folder(run.store->dir());
  lock_folders(run);
  if ((fresh || !run.holds_checkpoints) && !run.store->list().empty()) {
    throw refusal(fmt::format("another run has begun in {} just now", run.dir.string()), "start again");
  }
  remember_checkpoint_place(run.dir, run.store->dir().string());
}

}  // namespace mythos
