// A run's folders: locking, setting aside, creating.
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "train/run_parts.h"

namespace mythos {
namespace fs = std::filesystem;

fs::path set_run_aside(const fs::path& dir) {
  fs::path plain = dir.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();  // "runs/x/"
  if (plain.filename() == "." || plain.filename() == "..") plain = fs::weakly_canonical(plain);
  for (int n = 1;; ++n) {
    const fs::path target = plain.parent_path() / fmt::format("{}.{}", plain.filename().string(), n);
    std::error_code ec;
    if (fs::exists(fs::symlink_status(target, ec))) continue;
    fs::rename(plain, target, ec);
    if (ec) throw failure(fmt::format("cannot set {} aside as {}: {}", dir.string(), target.string(), ec.message()));
    return target;
  }
}

namespace {

// Whether checkpoints lie somewhere else than in the run's folder.
bool checkpoints_outside(const Run& run) {
  const fs::path inside = fs::weakly_canonical(run.store->dir()).lexically_relative(fs::weakly_canonical(run.dir));
  return inside.empty() || *inside.begin() == "..";
}

}  // namespace

namespace {
std::unique_ptr<FolderLock> lock(const fs::path& folder) {
  return std::make_unique<FolderLock>(folder, "training in", "choose another folder with --set run.dir=DIR");
}
}  // namespace

void lock_folders(Run& run) {
  std::error_code ec;
  if (!run.lock && fs::is_directory(run.dir, ec)) run.lock = lock(run.dir);
  if (!run.checkpoint_lock && checkpoints_outside(run) && fs::is_directory(run.store->dir(), ec)) {
    run.checkpoint_lock = lock(run.store->dir());
  }
}

void enter_folders(Run& run, bool fresh) {
  std::error_code ec;
  if (fresh) {
    lock_folders(run);  // nobody trains there
    run.lock.reset();
    run.checkpoint_lock.reset();
    if (checkpoints_outside(run) && fs::exists(run.store->dir(), ec))
      log::info("the old checkpoints are set aside as {}", set_run_aside(run.store->dir()).string());
    if (fs::exists(run.dir, ec)) log::info("the old run is set aside as {}", set_run_aside(run.dir).string());
  }
  make_folder(run.dir);
  make_folder(run.store->dir());
  lock_folders(run);
  const bool goes_on_here = run.checkpoint && run.checkpoint->path().parent_path() == run.store->dir();
  if (!goes_on_here && !run.store->list().empty()) {
    throw refusal(fmt::format("another run has begun in {} just now", run.dir.string()), "start again");
  }
}

}  // namespace mythos
