// Checkpoints as objects of S3.
#pragma once

#include "checkpoint/target.h"
#include "storage/s3_folder.h"

namespace mythos {

/// Objects are multipart uploads: whole or absent. They are set aside by a note beside them, NAME.SUFFIX.note. What is
/// opened is first copied into a nameless file, on disk or where there is no room in memory, that is gone when the
/// checkpoint is closed or the process ends.
class S3Target : public CheckpointTarget {
 public:
  S3Target(const std::string& address, double patience);

  [[nodiscard]] bool is_remote() const override { return true; }
  void prepare() override;
  [[nodiscard]] std::vector<StoredFile> list() const override;
  [[nodiscard]] std::unique_ptr<ByteSink> create(const std::string& name, uint64_t bytes, bool fast) override;
  [[nodiscard]] Checkpoint open(const StoredFile& file, Part part) const override;
  void remove(const std::string& name) override;
  std::string set_aside(const std::string& name, std::string_view suffix) override;
  std::string set_all_aside() override;

 private:
  S3Folder folder_;
  double patience_;
};

/// A file without a name for `bytes`, read through path(); where temporary files go if there is room, else in memory.
class NamelessFile {
 public:
  /// Throws Error if there is no room anywhere.
  NamelessFile(uint64_t bytes, const std::string& what_for);
  ~NamelessFile();
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;
  [[nodiscard]] std::string path() const;
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

 private:
  int fd_ = -1;
};

}  // namespace mythos
