// Where the checkpoints of a run are, and where they were before checkpoint.dir was changed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mythos {

/// The places that RUN/checkpoint_places.json names, the one used last first; those inside the run's folder as they are
/// now, should it have been moved. Empty without the file; a warning if it is damaged.
std::vector<std::string> checkpoint_places(const std::filesystem::path& run);
/// Puts `place` (a path or "s3://BUCKET/PREFIX") before the others. Throws Error if the file cannot be written.
void remember_checkpoint_place(const std::filesystem::path& run, const std::string& place);
/// Whether two such places are the same folder.
bool same_place(const std::string& a, const std::string& b);

}  // namespace mythos
