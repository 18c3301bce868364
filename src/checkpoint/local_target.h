// Checkpoints in a folder, which may be a mounted bucket.
#pragma once

#include "checkpoint/target.h"

#include <filesystem>

namespace mythos {

/// Files are written under a temporary name and renamed. Where renaming is missing, or is a copy that can be cut short,
/// prepare() finds that out and leaves the empty file ".marks_whole_files" in the folder; from then on a file is
/// written under its own name, and NAME.complete (its size and checksum, JSON) is written last. Without it, or with
/// another size in it, the file is unfinished. A file is then set aside by a note beside it, NAME.SUFFIX.note.
class LocalTarget : public CheckpointTarget {
 public:
  explicit LocalTarget(const std::string& folder);

  void prepare() override;
  [[nodiscard]] std::vector<StoredFile> list() const override;
  [[nodiscard]] std::unique_ptr<ByteSink> create(const std::string& name, uint64_t bytes, bool fast) override;
  [[nodiscard]] bool takes_parts() const override { return !marks(); }
  [[nodiscard]] std::unique_ptr<SharedFile> create_shared(const std::string& name, uint64_t bytes,
                                                          int64_t writers) override;
  [[nodiscard]] Checkpoint open(const StoredFile& file, Part part) const override;
  void remove(const std::string& name) override;
  std::string set_aside(const std::string& name, std::string_view suffix) override;
  std::string set_all_aside() override;
  [[nodiscard]] std::optional<uint64_t> free_bytes() const override;

 private:
  [[nodiscard]] bool marks() const;
  [[nodiscard]] std::string why_not_rename() const;
  void finish_or_remove(bool remove_bad);

  std::filesystem::path dir_;
};

/// A file of `bytes` under a temporary name, renamed when it is whole. Space for all of it is set aside at once.
std::unique_ptr<ByteSink> renamed_file(const std::filesystem::path& path, uint64_t bytes);

}  // namespace mythos
