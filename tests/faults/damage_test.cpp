// Bit flips, cuts and overwritten blocks in every file of a run.
#include "damage.h"

namespace mythos::testing {
namespace {

// A run that was killed in the middle, with its checkpoints.
void run_to_the_middle(const FaultyRun& run) {
  const auto p = run.program();
  ASSERT_TRUE(p->wait_until([&] { return run.newest_whole() >= 8; })) << p->err();
  p->signal(SIGKILL);
  p->wait();
}

TEST(Damage, OfEveryFile) {
  const FaultyRun source({"checkpoint.every=2", "checkpoint.keep_last=3"});
  run_to_the_middle(source);
  const fs::path saved = source.folder() / "saved";
  fs::copy(source.run(), saved, fs::copy_options::recursive);
  std::vector<fs::path> files;
  for (const auto& e : fs::recursive_directory_iterator(saved)) {
    if (e.is_regular_file() && e.path().filename() != ".lock") files.push_back(e.path().lexically_relative(saved));
  }
  std::sort(files.begin(), files.end());
  EXPECT_GE(files.size(), 7U) << "config.toml, log.txt, metrics.jsonl, status.json, events, checkpoints";
  Random random(derive_seed(26, 0, "damage"));
  for (const fs::path& file : files) {
    for (int kind = 0; kind < 3; ++kind) {
      fs::remove_all(source.run());
      fs::copy(saved, source.run(), fs::copy_options::recursive);
      const std::string what = damage(source.run() / file, static_cast<Damage>(kind), random);
      SCOPED_TRACE(fmt::format("{}: {}", file.string(), what));
      const Ended ended = source.start();
      // Either it goes on as if nothing had been, from the checkpoint before if need be, or it says what is wrong in a
      // sentence that names the file; what is mended then, goes on.
      expect_clean_end(ended, {0, 1, 2});
      if (ended.code != 0) {
        EXPECT_NE(ended.err.find(file.filename().string()), std::string::npos) << ended.err;
        fs::copy_file(saved / file, source.run() / file, fs::copy_options::overwrite_existing);
      }
      source.expect_ends_like_undisturbed(file.filename() != "metrics.jsonl");
    }
  }
}

}  // namespace
}  // namespace mythos::testing
